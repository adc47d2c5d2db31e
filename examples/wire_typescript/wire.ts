// Asks for a timer under an id and cancels it, then asks for another one and receives its callback.
//
//   npm install && npm start       # on the Kafka at $KAFKA, 127.0.0.1:9092 by default
//   node build/wire.js order-7 12  # prints the partition of an id among 12
//
// docs/wire-examples.md explains it.
import { EventEmitter, on } from "node:events";
import { Kafka, logLevel, Partitioners } from "kafkajs";
import type { EachMessagePayload, KafkaMessage, PartitionMetadata, Producer } from "kafkajs";

const id = "order-7-typescript";
const outcomes = ["", "CANCELLED", "MOVED", "TOO_LATE", "UNKNOWN", "ACCEPTED", "IGNORED"];

async function run(address: string): Promise<void> {
  const kafka = new Kafka({ brokers: [address], logLevel: logLevel.ERROR });
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner });
  // Skip callbacks of aborted transactions.
  const consumer = kafka.consumer({ groupId: "wire-typescript", readUncommitted: false });
  const admin = kafka.admin();
  await Promise.all([producer.connect(), consumer.connect(), admin.connect()]);
  try {
    const { topics } = await admin.fetchTopicMetadata({ topics: ["timer-request"] });
    const partition = partitionOf(id, topics[0]!.partitions.length);
    await consumer.subscribe({ topics: ["callbacks", "timer-reply"], fromBeginning: true });
    const received = new EventEmitter();
    const records = on(received, "record", { signal: AbortSignal.timeout(60_000) });
    await consumer.run({ eachMessage: async (record) => void received.emit("record", record) });

    // Ask for a timer in an hour, and cancel it before it fires.
    await send(producer, partition, second(3600), [...request("1"), text(9, "timer-reply")]);
    const cancelled = await send(producer, partition, id, cancel("timer-reply"));
    await receive(records, cancelled);

    // Ask for another timer, and wait for its callback.
    const asked = await send(producer, partition, second(1), request("2"));
    await receive(records, asked);
  } finally {
    await Promise.all([producer.disconnect(), consumer.disconnect(), admin.disconnect()]);
  }
}

function second(from: number): string {
  return String(Math.floor(Date.now() / 1000) + from);
}

/** Fields of a Future: topic, key and value of the callback, the timer's id, and a token that comes back. */
function request(token: string): Buffer[] {
  return [text(1, "callbacks"), text(2, "order-7"), text(3, "pay now"), text(4, id), text(5, token)];
}

/** Fields of a Future that cancels the timer of the id. */
function cancel(replyTopic: string): Buffer[] {
  return [text(4, id), varint(8 << 3), varint(1), text(9, replyTopic)];
}

function text(field: number, value: string): Buffer {
  const bytes = Buffer.from(value);
  return Buffer.concat([varint((field << 3) | 2), varint(bytes.length), bytes]);
}

function varint(value: number): Buffer {
  const bytes: number[] = [];
  for (; value > 127; value >>>= 7) bytes.push((value & 127) | 128);
  return Buffer.from([...bytes, value]);
}

/** The partition of a timer id: the one that Kafka's default gives to a record with the id as its key. */
function partitionOf(id: string, count: number): number {
  const partitionMetadata = new Array<PartitionMetadata>(count);
  return Partitioners.DefaultPartitioner()({ topic: "", partitionMetadata, message: { key: id, value: null } });
}

/** Publishes a Future, and returns partition:offset, the name that answers and callbacks have for it. */
async function send(producer: Producer, partition: number, key: string, future: Buffer[]): Promise<string> {
  const messages = [{ partition, key, value: Buffer.concat(future) }];
  const [at] = await producer.send({ topic: "timer-request", messages });
  return `${partition}:${at!.baseOffset}`;
}

/** The outcome that a Reply tells, and partition:offset of the record that it answers. */
function replyIn(message: Buffer): { outcome: string; asked: string } {
  const reply = { outcome: "", asked: "" };
  let at = 0;
  const varint = (): number => {
    let value = 0;
    for (let weight = 1; ; weight *= 128) {
      const part = message.readUInt8(at++);
      value += (part & 127) * weight;
      if (part < 128) return value;
    }
  };
  while (at < message.length) {
    const tag = varint();
    const kind = tag & 7;
    if (kind === 0) {
      const value = varint();
      if (tag === 2 << 3) reply.outcome = outcomes[value] ?? "";
    } else {
      // Later versions may have fields of eight or four bytes.
      const size = kind === 1 ? 8 : kind === 5 ? 4 : varint();
      if (tag === ((5 << 3) | 2)) reply.asked = message.toString("utf8", at, at + size);
      at += size;
    }
  }
  return reply;
}

/** Prints callbacks and answers, until one of them is about the record at `place`, a partition:offset. */
async function receive(records: AsyncIterator<EachMessagePayload[]>, place: string): Promise<void> {
  while (show((await records.next()).value[0]) !== place);
}

/** Prints a callback or an answer of the id, and returns the place of the record that it is about. */
function show({ topic, message }: EachMessagePayload): string {
  if (header(message, "timer-id") === id) {
    const [token, expiry] = [header(message, "timer-token"), header(message, "timer-expiry")];
    console.log(`callback: ${message.value}, id ${id}, token ${token}, expiry ${expiry}`);
    return header(message, "timer-request");
  }
  if (topic === "timer-reply" && message.key?.toString() === id) {
    const { outcome, asked } = replyIn(message.value!);
    console.log(`answer to ${asked}: ${outcome}`);
    return asked;
  }
  return "";
}

function header(message: KafkaMessage, name: string): string {
  return [message.headers?.[name]].flat()[0]?.toString() ?? "";
}

const words = process.argv.slice(2);
for (let at = 0; at + 1 < words.length; at += 2) console.log(partitionOf(words[at]!, Number(words[at + 1])));
if (words.length === 0) await run(process.env.KAFKA ?? "127.0.0.1:9092");
