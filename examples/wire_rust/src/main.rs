//! Asks for a timer under an id and cancels it, then asks for another one and receives its callback.
//!
//!     cargo run              # on the Kafka at $KAFKA, 127.0.0.1:9092 by default
//!     cargo run order-7 12   # prints the partition of an id among 12
//!
//! docs/wire-examples.md explains it.

use std::env;
use std::error::Error;
use std::sync::mpsc::{channel, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, DeliveryResult, Headers, Message};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};

const ID: &str = "order-7-rust";
const OUTCOMES: [&str; 7] = ["", "CANCELLED", "MOVED", "TOO_LATE", "UNKNOWN", "ACCEPTED", "IGNORED"];
const LIMIT: Duration = Duration::from_secs(60);

type Answer<T> = Result<T, Box<dyn Error>>;

fn main() -> Answer<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    for pair in words.chunks_exact(2) {
        println!("{}", partition_of(&pair[0], pair[1].parse()?));
    }
    if words.is_empty() {
        run(&env::var("KAFKA").unwrap_or("127.0.0.1:9092".into()))?;
    }
    Ok(())
}

fn run(kafka: &str) -> Answer<()> {
    let producer: ThreadedProducer<Places> =
        ClientConfig::new().set("bootstrap.servers", kafka).create_with_context(Places)?;
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka)
        .set("group.id", "wire-rust")
        .set("auto.offset.reset", "earliest")
        // Skip callbacks of aborted transactions.
        .set("isolation.level", "read_committed")
        .create()?;
    consumer.subscribe(&["callbacks", "timer-reply"])?;

    // Ask for a timer in an hour, and cancel it before it fires.
    send(&producer, &second(3600), &[request("1"), text(9, "timer-reply")].concat())?;
    let cancelled = send(&producer, ID, &cancel("timer-reply"))?;
    receive(&consumer, &cancelled)?;

    // Ask for another timer, and wait for its callback.
    let asked = send(&producer, &second(1), &request("2"))?;
    receive(&consumer, &asked)
}

fn second(from_now: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    (now + from_now).to_string()
}

/// Returns a Future: topic, key and value of the callback, the timer's id, and a token that comes back.
fn request(token: &str) -> Vec<u8> {
    [text(1, "callbacks"), text(2, "order-7"), text(3, "pay now"), text(4, ID), text(5, token)].concat()
}

/// Returns a Future that cancels the timer of the id.
fn cancel(reply_topic: &str) -> Vec<u8> {
    [text(4, ID), varint(8 << 3), varint(1), text(9, reply_topic)].concat()
}

fn text(field: usize, value: &str) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len()), value.into()].concat()
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = vec![];
    while value > 127 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Returns the partition of a timer id: the one that Kafka's default gives to a record with the id as its key.
fn partition_of(id: &str, count: usize) -> i32 {
    let hash = murmur2::murmur2(id.as_bytes(), murmur2::KAFKA_SEED) & 0x7fff_ffff;
    (hash as usize % count) as i32
}

/// Tells the sender the partition and offset of a record, once the broker has it.
struct Places;

impl ClientContext for Places {}

impl ProducerContext for Places {
    type DeliveryOpaque = Box<Sender<Result<String, String>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, waits: Self::DeliveryOpaque) {
        let place = match result {
            Ok(record) => Ok(format!("{}:{}", record.partition(), record.offset())),
            Err((error, _)) => Err(error.to_string()),
        };
        let _ = waits.send(place);
    }
}

/// Publishes a Future, and returns partition:offset, the name that answers and callbacks have for it.
fn send(producer: &ThreadedProducer<Places>, key: &str, future: &[u8]) -> Answer<String> {
    let metadata = producer.client().fetch_metadata(Some("timer-request"), LIMIT)?;
    let partition = partition_of(ID, metadata.topics()[0].partitions().len());
    let (waits, place) = channel();
    let record = BaseRecord::with_opaque_to("timer-request", Box::new(waits));
    producer.send(record.partition(partition).key(key).payload(future)).map_err(|(error, _)| error)?;
    Ok(place.recv()??)
}

/// Returns the outcome that a Reply tells, and partition:offset of the record that it answers.
fn reply(message: &[u8]) -> Option<(&str, &str)> {
    let (mut outcome, mut asked, mut left) = ("", "", message);
    while !left.is_empty() {
        let tag = take_varint(&mut left)?;
        let number = if tag & 7 == 0 { take_varint(&mut left)? } else { 0 };
        let size = match tag & 7 {
            0 => 0,
            2 => take_varint(&mut left)? as usize,
            // Later versions may have fields of these kinds.
            1 => 8,
            5 => 4,
            _ => return None,
        };
        let (bytes, behind) = left.split_at_checked(size)?;
        left = behind;
        match tag >> 3 {
            2 => outcome = OUTCOMES.get(number as usize).unwrap_or(&""),
            5 => asked = std::str::from_utf8(bytes).ok()?,
            _ => {}
        }
    }
    Some((outcome, asked))
}

fn take_varint(left: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (part, behind) = left.split_first()?;
        *left = behind;
        value |= u64::from(part & 127) << shift;
        if *part < 128 {
            return Some(value);
        }
    }
    None
}

/// Prints callbacks and answers, until one of them is about the record at `place`, a partition:offset.
fn receive(consumer: &BaseConsumer, place: &str) -> Answer<()> {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if let Some(record) = consumer.poll(Duration::from_millis(200)) {
            if show(&record?) == place {
                return Ok(());
            }
        }
    }
    Err("nothing has come for a minute: is the service running?".into())
}

/// Prints a callback or an answer of the id, and returns the place of the record that it is about.
fn show(record: &BorrowedMessage) -> String {
    let value = record.payload().unwrap_or_default();
    if header(record, "timer-id") == ID {
        let (token, expiry) = (header(record, "timer-token"), header(record, "timer-expiry"));
        println!("callback: {}, id {ID}, token {token}, expiry {expiry}", String::from_utf8_lossy(value));
        return header(record, "timer-request").into();
    }
    if record.topic() == "timer-reply" && record.key() == Some(ID.as_bytes()) {
        let (outcome, asked) = reply(value).unwrap_or_default();
        println!("answer to {asked}: {outcome}");
        return asked.into();
    }
    String::new()
}

fn header<'a>(record: &'a BorrowedMessage, name: &str) -> &'a str {
    let found = record.headers().and_then(|headers| headers.iter().find(|header| header.key == name));
    found.and_then(|header| std::str::from_utf8(header.value?).ok()).unwrap_or_default()
}
