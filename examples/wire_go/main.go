// Command wire asks for a timer under an id and cancels it, then asks for another one and receives its callback.
//
//	go run .              # on the Kafka at $KAFKA, 127.0.0.1:9092 by default
//	go run . order-7 12   # prints the partition of an id among 12
//
// docs/wire-examples.md explains it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/encoding/protowire"
)

const id = "order-7-go"

var outcomes = map[uint64]string{
	1: "CANCELLED", 2: "MOVED", 3: "TOO_LATE", 4: "UNKNOWN", 5: "ACCEPTED", 6: "IGNORED",
}

func main() {
	if len(os.Args) > 1 {
		for at := 1; at+1 < len(os.Args); at += 2 {
			count, err := strconv.Atoi(os.Args[at+1])
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(partitionOf(os.Args[at], count))
		}
		return
	}
	kafka := os.Getenv("KAFKA")
	if kafka == "" {
		kafka = "127.0.0.1:9092"
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	if err := run(ctx, kafka); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kafka string) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(kafka),
		// Each record names its partition.
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// Skip callbacks of aborted transactions.
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumerGroup("wire-go"),
		kgo.ConsumeTopics("callbacks", "timer-reply"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	topics, err := kadm.NewClient(client).ListTopics(ctx, "timer-request")
	if err != nil {
		return err
	}
	count := len(topics["timer-request"].Partitions)
	if count == 0 {
		return fmt.Errorf("topic timer-request is missing: is the service running?")
	}

	// Ask for a timer in an hour, and cancel it before it fires.
	if _, err := send(ctx, client, count, second(time.Hour), text(request("1"), 9, "timer-reply")); err != nil {
		return err
	}
	cancelled, err := send(ctx, client, count, id, cancel("timer-reply"))
	if err != nil {
		return err
	}
	if err := receive(ctx, client, cancelled); err != nil {
		return err
	}

	// Ask for another timer, and wait for its callback.
	asked, err := send(ctx, client, count, second(time.Second), request("2"))
	if err != nil {
		return err
	}
	return receive(ctx, client, asked)
}

func second(in time.Duration) string {
	return strconv.FormatInt(time.Now().Add(in).Unix(), 10)
}

// request returns a Future: topic, key and value of the callback, the timer's id, and a token that comes back.
func request(token string) []byte {
	future := text(nil, 1, "callbacks")
	future = text(future, 2, "order-7")
	future = text(future, 3, "pay now")
	future = text(future, 4, id)
	return text(future, 5, token)
}

// cancel returns a Future that cancels the timer of the id.
func cancel(replyTopic string) []byte {
	future := text(nil, 4, id)
	future = protowire.AppendVarint(protowire.AppendTag(future, 8, protowire.VarintType), 1)
	return text(future, 9, replyTopic)
}

func text(message []byte, field protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(message, field, protowire.BytesType), value)
}

// partitionOf returns the partition of an id: the one that Kafka's default gives to a record with the id as its key.
func partitionOf(id string, count int) int {
	return kgo.StickyKeyPartitioner(nil).ForTopic("").Partition(&kgo.Record{Key: []byte(id)}, count)
}

// send publishes a Future, and returns partition:offset, the name that answers and callbacks have for it.
func send(ctx context.Context, client *kgo.Client, count int, key string, future []byte) (string, error) {
	record := &kgo.Record{
		Topic: "timer-request", Partition: int32(partitionOf(id, count)), Key: []byte(key), Value: future,
	}
	if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d:%d", record.Partition, record.Offset), nil
}

// reply returns the outcome that a Reply tells, and partition:offset of the record that it answers.
func reply(message []byte) (outcome, asked string) {
	for len(message) > 0 {
		field, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return "", ""
		}
		message = message[size:]
		if size = protowire.ConsumeFieldValue(field, kind, message); size < 0 {
			return "", ""
		}
		switch field {
		case 2:
			number, _ := protowire.ConsumeVarint(message)
			outcome = outcomes[number]
		case 5:
			asked, _ = protowire.ConsumeString(message)
		}
		message = message[size:]
	}
	return outcome, asked
}

// receive prints callbacks and answers, until one of them is about the record at place, a partition:offset.
func receive(ctx context.Context, client *kgo.Client, place string) error {
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			if show(record) == place {
				return nil
			}
		}
	}
}

// show prints a callback or an answer of the id, and returns the place of the record that it is about.
func show(record *kgo.Record) string {
	switch {
	case header(record, "timer-id") == id:
		token, expiry := header(record, "timer-token"), header(record, "timer-expiry")
		fmt.Printf("callback: %s, id %s, token %s, expiry %s\n", record.Value, id, token, expiry)
		return header(record, "timer-request")
	case record.Topic == "timer-reply" && string(record.Key) == id:
		outcome, asked := reply(record.Value)
		fmt.Printf("answer to %s: %s\n", asked, outcome)
		return asked
	}
	return ""
}

func header(record *kgo.Record, name string) string {
	for _, each := range record.Headers {
		if each.Key == name {
			return string(each.Value)
		}
	}
	return ""
}
