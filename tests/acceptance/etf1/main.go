// The scheduler etf1/kafka-message-scheduler as it is published, for test_etf1_switch.py. Its variables say how it is set.
package main

import (
	"log"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata"

	"github.com/etf1/kafka-message-scheduler/runner/kafka"
)

func main() {
	// Its own program does no more, but for a page of profiles at a port that cannot be chosen.
	scheduler := kafka.DefaultRunner()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-stop
		if err := scheduler.Close(); err != nil {
			log.Print(err)
		}
	}()
	if err := scheduler.Start(); err != nil {
		log.Fatal(err)
	}
}
