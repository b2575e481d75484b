//! Publishes what a paged cache holds over ZeroMQ, as vLLM does, and replays what a subscriber missed.
//!
//! ```sh
//! cargo run --release -p events
//! pip install msgspec pyzmq && python examples/events/subscriber.py    # in another terminal
//! ```
//! The publisher goes on answering when its chats are over, until it is interrupted or `--linger` seconds have passed:
//! whoever subscribes too late to hear anything has it by a replay, from a publisher that is still running.

mod options;
mod workload;

use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use paged_kv::event::{Frames, Publisher};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use options::{Asked, Options};
use workload::Workload;

fn main() -> ExitCode {
    let result = match Options::read(std::env::args_os()) {
        Ok(Asked::Text(text)) => {
            print!("{text}");
            Ok(())
        }
        Ok(Asked::Run(options)) => run(&options).map_err(|error| error.to_string()),
        Err(text) => Err(text),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            // One line, whatever an argument or a system's own words hold.
            eprintln!("events: {}", text.replace(char::is_control, " "));
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let workload = Workload::new(options)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        tokio::select! {
            result = publish(options, workload) => result,
            _ = tokio::signal::ctrl_c() => Ok(()),
        }
    })
}

/// Binds both sockets, runs the chats, and stays for those who missed something.
async fn publish(options: &Options, mut workload: Workload) -> Result<(), Box<dyn Error>> {
    let (mut subscribers, mut requests) = (PubSocket::new(), RouterSocket::new());
    subscribers.bind(&options.endpoint).await.map_err(|error| format!("--endpoint {}: {error}", options.endpoint))?;
    requests.bind(&options.replay).await.map_err(|error| format!("--replay {}: {error}", options.replay))?;
    println!("publishing on {}, replaying on {}", options.endpoint, options.replay);

    let publisher = Arc::new(Mutex::new(Publisher::new(options.topic.as_bytes(), options.keep)));
    let replays = tokio::spawn(answer(requests, publisher.clone()));

    let encoder = options.encoder();
    let mut interval = tokio::time::interval(Duration::from_millis(options.interval_ms.max(1)));
    let (mut num_events, mut batch) = (0, Vec::new());
    for _ in 0..options.requests {
        interval.tick().await;
        let events = workload.chat()?;
        if events.is_empty() {
            continue;
        }
        num_events += events.len();
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        batch.clear();
        encoder.encode_batch(seconds, &events, &mut batch);
        let frames = locked(&publisher, |publisher| publisher.publish(&batch));
        subscribers.send(message([], &frames)).await?;
    }
    let num_batches = locked(&publisher, |publisher| publisher.next_sequence());
    println!("{num_events} events in {num_batches} batches, from {} chats", options.requests);
    match options.linger() {
        Some(linger) => tokio::time::sleep(linger).await,
        None => replays.await?,
    }
    Ok(())
}

/// Answers requests for a replay: client, an empty frame, the number. Others get no answer, as with vLLM.
async fn answer(mut requests: RouterSocket, publisher: Arc<Mutex<Publisher>>) {
    while let Ok(request) = requests.recv().await {
        let request = request.into_vec();
        let [client, empty, number] = &request[..] else {
            eprintln!("events: a request of {} frames", request.len());
            continue;
        };
        let answer = locked(&publisher, |publisher| publisher.replay(number).map(Vec::from_iter));
        match answer {
            Ok(answer) => {
                for frames in answer {
                    if requests.send(message([client, empty], &frames)).await.is_err() {
                        break; // The client left.
                    }
                }
            }
            Err(error) => eprintln!("events: {error}"),
        }
    }
}

fn locked<T>(publisher: &Mutex<Publisher>, f: impl FnOnce(&mut Publisher) -> T) -> T {
    f(&mut publisher.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A message with these frames before those of the batch.
fn message<const N: usize>(before: [&[u8]; N], frames: &Frames) -> ZmqMessage {
    let [topic, number, batch] = frames.parts().map(Bytes::copy_from_slice);
    let mut message = ZmqMessage::from(topic);
    message.push_back(number);
    message.push_back(batch);
    for part in before.into_iter().rev() {
        message.push_front(Bytes::copy_from_slice(part));
    }
    message
}
