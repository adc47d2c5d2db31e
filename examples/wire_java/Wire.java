import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Utils;

/**
 * Asks for a timer under an id and cancels it, then asks for another one and receives its callback.
 *
 * <p>Without arguments on the Kafka at $KAFKA, 127.0.0.1:9092 by default. With an id and a count it prints the partition
 * of the id. docs/wire-examples.md explains it.
 */
public class Wire {
  static final String ID = "order-7-java";
  static final List<String> OUTCOMES =
      List.of("", "CANCELLED", "MOVED", "TOO_LATE", "UNKNOWN", "ACCEPTED", "IGNORED");

  public static void main(String[] args) throws Exception {
    for (int at = 0; at + 1 < args.length; at += 2) {
      System.out.println(partitionOf(args[at], Integer.parseInt(args[at + 1])));
    }
    if (args.length == 0) {
      run(System.getenv().getOrDefault("KAFKA", "127.0.0.1:9092"));
    }
  }

  static void run(String kafka) throws Exception {
    Map<String, Object> sending = Map.of("bootstrap.servers", kafka);
    Map<String, Object> reading = Map.of(
        "bootstrap.servers", kafka,
        "group.id", "wire-java",
        "auto.offset.reset", "earliest",
        // Skip callbacks of aborted transactions.
        "isolation.level", "read_committed");
    try (var producer = new KafkaProducer<>(sending, new StringSerializer(), new ByteArraySerializer());
        var consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new ByteArrayDeserializer())) {
      consumer.subscribe(List.of("callbacks", "timer-reply"));

      // Ask for a timer in an hour, and cancel it before it fires.
      var inAnHour = request("1");
      text(inAnHour, 9, "timer-reply");
      send(producer, second(3600), inAnHour);
      var cancelled = send(producer, ID, cancel("timer-reply"));
      receive(consumer, cancelled);

      // Ask for another timer, and wait for its callback.
      receive(consumer, send(producer, second(1), request("2")));
    }
  }

  static String second(long in) {
    return Long.toString(Instant.now().getEpochSecond() + in);
  }

  /** Returns a Future: topic, key and value of the callback, the timer's id, and a token that comes back. */
  static ByteArrayOutputStream request(String token) {
    var future = new ByteArrayOutputStream();
    text(future, 1, "callbacks");
    text(future, 2, "order-7");
    text(future, 3, "pay now");
    text(future, 4, ID);
    text(future, 5, token);
    return future;
  }

  /** Returns a Future that cancels the timer of the id. */
  static ByteArrayOutputStream cancel(String replyTopic) {
    var future = new ByteArrayOutputStream();
    text(future, 4, ID);
    varint(future, 8 << 3);
    varint(future, 1);
    text(future, 9, replyTopic);
    return future;
  }

  static void text(ByteArrayOutputStream message, int field, String value) {
    byte[] bytes = value.getBytes(UTF_8);
    varint(message, field << 3 | 2);
    varint(message, bytes.length);
    message.writeBytes(bytes);
  }

  static void varint(ByteArrayOutputStream message, int value) {
    for (; value > 127; value >>>= 7) {
      message.write(value & 127 | 128);
    }
    message.write(value);
  }

  /** Returns the partition of a timer id: the one that Kafka's default gives to a record with the id as its key. */
  static int partitionOf(String id, int count) {
    return Utils.toPositive(Utils.murmur2(id.getBytes(UTF_8))) % count;
  }

  /** Publishes a Future, and returns partition:offset, the name that answers and callbacks have for it. */
  static String send(KafkaProducer<String, byte[]> producer, String key, ByteArrayOutputStream future)
      throws Exception {
    int partition = partitionOf(ID, producer.partitionsFor("timer-request").size());
    var at = producer.send(new ProducerRecord<>("timer-request", partition, key, future.toByteArray())).get();
    return at.partition() + ":" + at.offset();
  }

  /** The outcome, and partition:offset of the record that this answers. */
  record Reply(String outcome, String asked) {
    static Reply of(byte[] message) {
      String outcome = "";
      String asked = "";
      for (var left = ByteBuffer.wrap(message); left.hasRemaining(); ) {
        long tag = varint(left);
        int kind = (int) tag & 7;
        long number = kind == 0 ? varint(left) : 0;
        // Later versions may have fields of eight or four bytes.
        byte[] bytes = new byte[kind == 1 ? 8 : kind == 5 ? 4 : kind == 2 ? (int) varint(left) : 0];
        left.get(bytes);
        if (tag == (2 << 3) && number < OUTCOMES.size()) {
          outcome = OUTCOMES.get((int) number);
        } else if (tag == (5 << 3 | 2)) {
          asked = new String(bytes, UTF_8);
        }
      }
      return new Reply(outcome, asked);
    }

    static long varint(ByteBuffer left) {
      long value = 0;
      for (int shift = 0; ; shift += 7) {
        byte part = left.get();
        value |= (part & 127L) << shift;
        if (part >= 0) {
          return value;
        }
      }
    }
  }

  /** Prints callbacks and answers, until one of them is about the record at `place`, a partition:offset. */
  static void receive(KafkaConsumer<String, byte[]> consumer, String place) {
    var end = Instant.now().plusSeconds(60);
    while (Instant.now().isBefore(end)) {
      boolean found = false;
      for (var record : consumer.poll(Duration.ofMillis(200))) {
        found |= show(record).equals(place);
      }
      if (found) {
        return;
      }
    }
    throw new IllegalStateException("nothing has come for a minute: is the service running?");
  }

  /** Prints a callback or an answer of the id, and returns the place of the record that it is about. */
  static String show(ConsumerRecord<String, byte[]> record) {
    if (header(record, "timer-id").equals(ID)) {
      System.out.printf("callback: %s, id %s, token %s, expiry %s%n", new String(record.value(), UTF_8), ID,
          header(record, "timer-token"), header(record, "timer-expiry"));
      return header(record, "timer-request");
    }
    if (record.topic().equals("timer-reply") && ID.equals(record.key())) {
      var reply = Reply.of(record.value());
      System.out.printf("answer to %s: %s%n", reply.asked(), reply.outcome());
      return reply.asked();
    }
    return "";
  }

  static String header(ConsumerRecord<String, byte[]> record, String name) {
    for (var header : record.headers().headers(name)) {
      return new String(header.value(), UTF_8);
    }
    return "";
  }
}
