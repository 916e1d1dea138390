//! `kvpin status`: a card for people, JSON for programs, and a clear word where there is nothing to show.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};

use serde_json::json;
use tokio::task::spawn_blocking;

use crate::support::kvpin::{BINARY, Kvpin, config, run};
use crate::support::recorder::Recorder;
use crate::support::until;

const TOKEN: &str = "token-of-the-status-6b1f3a";

/// Answers each connection with `response`, as any server might that isn't kvpin.
fn server(response: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("an address");
    let response = response.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let mut lines = BufReader::new(&stream).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            // Whoever asked may have left.
            (&stream).write_all(response.as_bytes()).ok();
        }
    });
    address
}

fn with_length(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn json_is_what_was_sent_byte_for_byte() {
    let body = "{ \"kvpin\":  {\"version\": \"9.9\", \"new\": [1,2]},\n\"models\": [] , \"x\": \"\\u00e9\"}\n\n";
    let address = server(&with_length("200 OK", body)).to_string();
    let output = run(&["status", "--json", "--admin", &address]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), body.as_bytes()), "{}", stderr(&output));
}

#[test]
fn where_there_is_no_status_it_is_said_why_and_the_exit_status_tells() {
    let strange = [
        with_length("200 OK", "<html>nginx</html>"),
        with_length("200 OK", "{}"),
        with_length("404 Not Found", "<html>nginx</html>"),
        with_length("401 Unauthorized", ""),
        // A listener of kvpin's for clients.
        with_length("404 Not Found", r#"{"error":{"message":"there is no such path","type":"not_found_error"}}"#),
    ]
    .map(|response| server(&response).to_string());
    let gone = TcpListener::bind("127.0.0.1:0").expect("binds").local_addr().expect("an address").to_string();
    let old = server(&with_length("200 OK", r#"{"kvpin":{"version":"0.0"}}"#)).to_string();
    let mut cases: Vec<(Vec<&str>, i32, &str)> = vec![
        (vec!["--admin", &gone], 1, "no kvpin answers at"),
        (vec!["--admin", &old], 1, "is it another version of kvpin?"),
        (vec!["--admin", "ftp://x"], 64, "no URL"),
        (vec!["--watch", "soon"], 64, "--watch"),
        (vec!["--config", "/nowhere.yaml"], 78, "/nowhere.yaml"),
        (vec!["--token-file", "/nowhere"], 1, "can't read /nowhere"),
        (vec!["--watch", "--admin", &gone], 1, "no kvpin answers at"),
    ];
    cases.extend(
        strange.iter().map(|address| (vec!["--admin", address.as_str()], 1, "is no admin listener of a kvpin")),
    );
    for (arguments, exit, said) in cases {
        for json in [&[][..], &["--json"]] {
            if json.len() == 1 && said.contains("version") {
                continue;
            }
            let output = run(&[&["status"][..], &arguments, json].concat());
            assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {}", stderr(&output));
            assert!(stderr(&output).contains(said) && output.stdout.is_empty(), "{arguments:?}: {}", stderr(&output));
        }
    }
}

#[tokio::test]
async fn the_token_is_found_where_the_other_commands_find_it() {
    let recorder = Recorder::start();
    let mut config = config(json!({ "m": { "replicas": [recorder.url()] } }));
    config["admin_token_file"] = json!("token");
    let kvpin = Kvpin::launch_with(&config, &[("token", TOKEN), ("wrong", "wrong")]).await;
    config["admin"] = json!(kvpin.admin.to_string());
    let asking = kvpin.file("asking.yaml");
    std::fs::write(&asking, config.to_string()).expect("writes");
    let (admin, right, wrong) = (kvpin.admin.to_string(), kvpin.file("token"), kvpin.file("wrong"));
    let outputs = spawn_blocking(move || {
        [
            run(&["status", "--config", &asking]),
            run(&["status", "--admin", &admin, "--token-file", &right]),
            run(&["status", "--admin", &admin, "--token-file", &wrong]),
            run(&["status", "--admin", &admin]),
        ]
    });
    let outputs = outputs.await.expect("they run");
    assert_eq!(outputs.each_ref().map(|output| output.status.code()), [Some(0), Some(0), Some(1), Some(1)]);
    for output in &outputs[2..] {
        assert!(stderr(output).contains("this takes the admin token"), "{}", stderr(output));
    }
    let card = String::from_utf8_lossy(&outputs[0].stdout);
    assert!(card.contains("affinity on") && card.contains(&recorder.name()) && !card.contains('\x1b'), "{card}");
}

/// Runs it on a terminal of its own, by `script`, until `enough` holds for what was drawn; then interrupts it.
async fn watched(
    arguments: &str,
    environment: &[(&str, &str)],
    enough: impl Fn(&str) -> bool,
) -> (String, Option<i32>) {
    let directory = tempfile::tempdir().expect("a directory");
    let typescript = directory.path().join("typescript");
    // In the place of the shell, which some let end by the interrupt whatever its command made of it.
    let command = format!("exec {BINARY} status --watch 0.1 {arguments}");
    let mut child = Command::new("script")
        .args(["-q", "-e", "-f", "-c", &command])
        .arg(&typescript)
        .env("TERM", "xterm")
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("script runs");
    let drawn = async || std::fs::read_to_string(&typescript).ok();
    until("enough was drawn", async || drawn().await.filter(|text| enough(text))).await;
    // What Ctrl-C is to a terminal.
    child.stdin.as_mut().expect("its stdin").write_all(b"\x03").expect("types");
    let status = until("it ends", async || child.try_wait().expect("its status")).await;
    (drawn().await.expect("what was drawn"), status.code())
}

#[tokio::test]
async fn a_watched_status_is_drawn_anew_in_place_and_leaves_the_terminal_as_it_was() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let at = format!("--admin {}", kvpin.admin);
    let drawings = |text: &str| text.matches("\x1b[?2026l").count();
    let (text, exit) = watched(&at, &[], |text| drawings(text) >= 3).await;
    assert_eq!(exit, Some(0), "{text:?}");
    assert_eq!((text.matches("\x1b[?1049h").count(), text.matches("\x1b[?1049l").count()), (1, 1), "{text:?}");
    assert!(text.contains("\x1b[1mm\x1b[0m") && text.contains("\x1b[32mup"), "{text:?}");
    assert!(!text.contains("\x1b[2J"), "nothing is cleared before it is drawn");
    assert!(text.contains("\x1b[?25h") && text.contains("\x1b[?7h"), "{text:?}");
    let (plain, exit) = watched(&at, &[("NO_COLOR", "1")], |text| drawings(text) >= 1).await;
    assert!(exit == Some(0) && !plain.contains("\x1b[32m") && plain.contains("affinity on"), "{plain:?}");
}

#[tokio::test]
async fn a_watched_status_outlives_the_kvpin_that_it_watches() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let at = format!("--admin {}", kvpin.admin);
    let kvpin = std::sync::Mutex::new(Some(kvpin));
    let (text, exit) = watched(&at, &[], |text| {
        if text.contains("affinity on") {
            drop(kvpin.lock().expect("nobody panics").take());
        }
        text.contains("no kvpin answers at")
    })
    .await;
    assert_eq!(exit, Some(0), "{text:?}");
}

#[test]
fn whoever_has_read_enough_may_close_the_pipe() {
    let body = r#"{"kvpin":{"version":"1","uptime_s":1.0,"open_requests":0},"models":[]}"#;
    let address = server(&with_length("200 OK", body)).to_string();
    let mut child = Command::new(BINARY)
        .args(["status", "--watch", "0.1", "--admin", &address])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kvpin starts");
    let mut out = child.stdout.take().expect("its stdout");
    out.read_exact(&mut [0; 10]).expect("it shows something");
    drop(out);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn the_man_page_and_the_completions_have_it() {
    let directory = tempfile::tempdir().expect("a directory");
    assert!(run(&["man", directory.path().to_str().expect("text")]).status.success());
    let page = std::fs::read_to_string(directory.path().join("kvpin-status.1")).expect("a page");
    assert!(page.contains("watch") && page.contains("/api/v1/status"), "{page}");
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(String::from_utf8_lossy(&output.stdout).contains("status"), "{shell}");
    }
}
