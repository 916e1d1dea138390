//! The live stream, read over real connections in a time that passes only when everything waits.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;
use tokio::time::sleep;

use super::super::live::READERS_MAX;
use super::*;

/// Longer than anything here takes, and over at once.
const AGES: Duration = Duration::from_secs(24 * 3_600);

/// A reader that has asked for the stream.
async fn reader(admin: &Arc<Admin>, shutdown: &ShutdownWatch) -> TcpStream {
    let mut client = connect_to(admin, shutdown).await;
    client.write_all(b"GET /api/v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    client
}

/// Reads up to the end of the next event, or of the head.
async fn next(client: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\n\n") && !text.ends_with(b"\r\n\r\n") {
        text.push(client.read_u8().await.unwrap());
    }
    String::from_utf8(text).unwrap()
}

/// Waits until so many read.
async fn until_read_by(admin: &Admin, readers: usize) {
    let begun = tokio::time::Instant::now();
    while admin.live.readers() != readers {
        assert!(begun.elapsed() < AGES, "{} read, not {readers}", admin.live.readers());
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_second_brings_the_status_of_that_second() {
    let (_stop, shutdown) = watch::channel(false);
    let mut client = reader(&admin(), &shutdown).await;
    let head = next(&mut client).await.to_lowercase();
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: text/event-stream\r\n"), "{head}");
    assert!(head.contains("cache-control: no-store\r\n") && !head.contains("content-length"), "{head}");
    let begun = tokio::time::Instant::now();
    for second in 0..4 {
        let event = next(&mut client).await;
        let data = event.strip_prefix("data: ").unwrap();
        let status: Status = serde_json::from_str(data).unwrap();
        assert_eq!((status.kvpin.open_requests, status.models[0].name.as_str()), (7, "tiny"));
        assert!(begun.elapsed() >= Duration::from_secs(second), "not faster than one a second");
    }
}

#[tokio::test(start_paused = true)]
async fn readers_are_so_many_at_most_and_one_that_goes_makes_room() {
    let (_stop, shutdown) = watch::channel(false);
    let admin = admin();
    let mut readers = Vec::new();
    for _ in 0..READERS_MAX {
        let mut client = reader(&admin, &shutdown).await;
        next(&mut client).await;
        readers.push(client);
    }
    let one_more = "GET /api/v1/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let (head, body) = ask(&mut connect_to(&admin, &shutdown).await, one_more).await;
    assert!(head.starts_with("http/1.1 503") && head.contains("retry-after: 10\r\n"), "{head}");
    assert!(body.contains("/api/v1/status"), "{body}");
    drop(readers.pop());
    until_read_by(&admin, READERS_MAX - 1).await;
    let mut client = reader(&admin, &shutdown).await;
    assert!(next(&mut client).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test(start_paused = true)]
async fn the_stream_ends_when_the_process_is_to_end() {
    let (stop, shutdown) = watch::channel(false);
    let admin = admin();
    let mut client = reader(&admin, &shutdown).await;
    next(&mut client).await;
    next(&mut client).await;
    stop.send_replace(true);
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.unwrap();
    until_read_by(&admin, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_nothing_is_cut_while_another_one_reads_on() {
    let (_stop, shutdown) = watch::channel(false);
    let admin = admin();
    let asleep = reader(&admin, &shutdown).await;
    let mut awake = reader(&admin, &shutdown).await;
    let events = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&events);
    tokio::spawn(async move {
        loop {
            next(&mut awake).await;
            seen.fetch_add(1, Ordering::Relaxed);
        }
    });
    until_read_by(&admin, 2).await;
    // Until what the system holds for the sleeper is full, and for a while more.
    until_read_by(&admin, 1).await;
    let before = events.load(Ordering::Relaxed);
    sleep(Duration::from_secs(60)).await;
    assert!(events.load(Ordering::Relaxed) > before + 20, "the other one goes on");
    drop(asleep);
}

#[tokio::test(start_paused = true)]
async fn the_head_of_the_stream_can_be_asked_for_alone() {
    let (_stop, shutdown) = watch::channel(false);
    let ask_for =
        |method: &str| format!("{method} /api/v1/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let (head, body) = ask(&mut connect_to(&admin(), &shutdown).await, &ask_for("HEAD")).await;
    assert!(head.starts_with("http/1.1 200") && head.contains("text/event-stream"), "{head}");
    assert_eq!(body, "");
    let (head, _) = ask(&mut connect_to(&admin(), &shutdown).await, &ask_for("DELETE")).await;
    assert!(head.starts_with("http/1.1 405") && head.contains("allow: get, head\r\n"), "{head}");
}
