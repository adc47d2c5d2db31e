// Command reminders asks for a reminder and waits for it, or cancels one, with a plain Kafka client.
//
//	go run . -in 3s -text "call mum"          # asks, and prints the reminder when it comes
//	go run . -in 1h -id mum -text "call mum" -leave   # asks under an id, and leaves
//	go run . -cancel mum                      # cancels it, and prints the answer
//
// docs/wire.md describes the records on the topics.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	requests  = "timer-request"
	replies   = "timer-reply"
	callbacks = "callbacks"
)

// outcomes of a Reply, by number.
var outcomes = []string{"", "CANCELLED", "MOVED", "TOO_LATE", "UNKNOWN", "ACCEPTED", "IGNORED"}

func main() {
	in := flag.Duration("in", 3*time.Second, "when, from now on")
	text := flag.String("text", "hello", "of the reminder")
	id := flag.String("id", "", "your name for it; a random one by default")
	leave := flag.Bool("leave", false, "do not wait for it")
	cancel := flag.String("cancel", "", "cancel the reminder of this id")
	flag.Parse()
	kafka := os.Getenv("KAFKA")
	if kafka == "" {
		kafka = "127.0.0.1:9092"
	}
	ctx, stop := context.WithTimeout(context.Background(), *in+time.Minute)
	defer stop()
	var err error
	if *cancel != "" {
		err = takeBack(ctx, kafka, *cancel)
	} else {
		err = remind(ctx, kafka, *id, *text, *in, *leave)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// remind asks for a reminder, and prints it when it comes.
func remind(ctx context.Context, kafka, id, text string, in time.Duration, leave bool) error {
	if id == "" {
		random := make([]byte, 8)
		rand.Read(random)
		id = "reminder-" + hex.EncodeToString(random)
	}
	// Start reading before asking, so that a reminder that comes at once is not missed.
	receiver, err := reader(ctx, kafka, callbacks)
	if err != nil {
		return err
	}
	defer receiver.Close()
	due := time.Now().Add(in)
	var future []byte
	future = appendText(future, 1, callbacks)
	future = appendText(future, 2, id)
	future = appendText(future, 3, text)
	future = appendText(future, 4, id)
	// The millisecond of the second that is the key.
	future = protowire.AppendTag(future, 6, protowire.VarintType)
	future = protowire.AppendVarint(future, uint64(due.UnixMilli()%1000))
	place, err := ask(ctx, kafka, id, strconv.FormatInt(due.Unix(), 10), future)
	if err != nil {
		return err
	}
	fmt.Printf("asked for %s as %s, request %s\n", due.Format(time.TimeOnly), id, place)
	if leave {
		return nil
	}
	return eachRecord(ctx, receiver, func(record *kgo.Record) (bool, error) {
		// Each copy of the callback names its request.
		if header(record, "timer-request") != place {
			return false, nil
		}
		late := time.Since(due).Round(time.Millisecond)
		fmt.Printf("reminder: %s (%s after its time)\n", record.Value, late)
		return true, nil
	})
}

// takeBack cancels the reminder of an id, and prints the service's answer.
func takeBack(ctx context.Context, kafka, id string) error {
	receiver, err := reader(ctx, kafka, replies)
	if err != nil {
		return err
	}
	defer receiver.Close()
	var future []byte
	future = appendText(future, 4, id)
	future = protowire.AppendTag(future, 8, protowire.VarintType)
	future = protowire.AppendVarint(future, 1)
	future = appendText(future, 9, replies)
	place, err := ask(ctx, kafka, id, id, future)
	if err != nil {
		return err
	}
	return eachRecord(ctx, receiver, func(record *kgo.Record) (bool, error) {
		outcome, asked, err := replyIn(record.Value)
		// The topic has the answers for all clients: take the one to our own record.
		if err != nil || asked != place {
			return false, nil
		}
		fmt.Printf("%s: %s\n", id, outcome)
		return true, nil
	})
}

// ask publishes a request or a cancel in the partition of its id, and returns partition:offset.
func ask(ctx context.Context, kafka, id, key string, future []byte) (string, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return "", err
	}
	defer client.Close()
	topics, err := kadm.NewClient(client).ListTopics(ctx, requests)
	if err != nil {
		return "", err
	}
	count := len(topics[requests].Partitions)
	if count == 0 {
		return "", errors.New("topic " + requests + " is missing: is the service running?")
	}
	record := &kgo.Record{Topic: requests, Partition: partitionOf(id, count), Key: []byte(key), Value: future}
	if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d:%d", record.Partition, record.Offset), nil
}

// reader returns a client that reads the committed records that come on a topic from now on.
func reader(ctx context.Context, kafka, topic string) (*kgo.Client, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return nil, err
	}
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		client.Close()
		return nil, err
	}
	at := map[string]map[int32]kgo.Offset{topic: {}}
	ends.Each(func(end kadm.ListedOffset) { at[topic][end.Partition] = kgo.NewOffset().At(end.Offset) })
	client.AddConsumePartitions(at)
	return client, nil
}

// eachRecord calls look with each record that comes, until it is done.
func eachRecord(ctx context.Context, client *kgo.Client, look func(*kgo.Record) (bool, error)) error {
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			if done, err := look(record); done || err != nil {
				return err
			}
		}
	}
}

func header(record *kgo.Record, name string) string {
	for _, each := range record.Headers {
		if each.Key == name {
			return string(each.Value)
		}
	}
	return ""
}

func appendText(message []byte, number protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(message, number, protowire.BytesType), text)
}

// replyIn returns the outcome of a Reply, and partition:offset of the record that it answers.
func replyIn(message []byte) (outcome, asked string, err error) {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return "", "", protowire.ParseError(size)
		}
		message = message[size:]
		switch {
		case number == 2 && kind == protowire.VarintType:
			value, size := protowire.ConsumeVarint(message)
			if size < 0 {
				return "", "", protowire.ParseError(size)
			}
			if value < uint64(len(outcomes)) {
				outcome = outcomes[value]
			}
			message = message[size:]
		case number == 5 && kind == protowire.BytesType:
			value, size := protowire.ConsumeString(message)
			if size < 0 {
				return "", "", protowire.ParseError(size)
			}
			asked, message = value, message[size:]
		default:
			size := protowire.ConsumeFieldValue(number, kind, message)
			if size < 0 {
				return "", "", protowire.ParseError(size)
			}
			message = message[size:]
		}
	}
	return outcome, asked, nil
}

// partitionOf returns the partition of an id: the one that Kafka's default gives to a record with the id as its key.
func partitionOf(id string, count int) int32 {
	return int32(kgo.StickyKeyPartitioner(nil).ForTopic("").Partition(&kgo.Record{Key: []byte(id)}, count))
}
