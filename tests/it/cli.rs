//! The command line as a shell sees it.

use std::fs;
use std::io::{BufRead as _, BufReader};

use serde_json::Value;

use crate::support::call::Call;
use crate::support::client::call;
use crate::support::kvpin::{run, spawn};
use crate::support::replicas::chat;

/// A file of that text, and its directory.
fn file(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("kvpin.yaml");
    fs::write(&path, text).expect("writes");
    let path = path.to_str().expect("a path of text").to_owned();
    (directory, path)
}

#[test]
fn a_bad_file_exits_78_and_is_told_by_key_path_and_line() {
    let front = "models:\n  m:\n    replicas: [http://127.0.0.1:1]\n";
    for (line, parts) in [
        ("    spill_threshold: 0", &["line 4", "models.m.spill_threshold"][..]),
        ("    colour: red", &["line 4", "models.m", "colour"]),
        ("    max_num_seqs: many", &["line 4", "models.m.max_num_seqs"]),
        ("listen: here", &["line 4", "listen"]),
    ] {
        let (_directory, path) = file(&format!("{front}{line}\n"));
        for command in ["check", "run"] {
            let output = run(&[command, "--config", &path]);
            assert_eq!(output.status.code(), Some(78), "{command} {line}");
            assert!(output.stdout.is_empty());
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(parts.iter().all(|part| said.contains(part)) && said.contains(&path), "{command} {line}: {said}");
        }
    }
}

#[test]
fn check_says_what_a_good_file_means() {
    let (_directory, path) = file("models: {m: {replicas: [{url: 'http://127.0.0.1:1', data_parallel_size: 2}]}}\n");
    let output = run(&["check", "--config", &path]);
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("127.0.0.1:1/1") && said.contains("/v1/responses turns can't be pinned"), "{said}");
    let output = run(&["check", "--config", &path, "--json"]);
    let object: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(
        (&object["ok"], object["models"][0]["replicas"].as_array().map(Vec::len)),
        (&Value::Bool(true), Some(2))
    );
}

#[test]
fn a_file_that_does_not_exist_exits_78() {
    for command in ["check", "run"] {
        let output = run(&[command, "--config", "/nowhere/kvpin.yaml"]);
        assert_eq!(output.status.code(), Some(78), "{command}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/kvpin.yaml"));
    }
}

#[test]
fn wrong_usage_exits_64_and_help_0() {
    for arguments in [&[][..], &["run"], &["walk"], &["check", "--config"], &["run", "--config", "a", "b"]] {
        assert_eq!(run(arguments).status.code(), Some(64), "{arguments:?}");
    }
    for arguments in [["--help"], ["--version"]] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8_lossy(&output.stdout).contains("kvpin"));
    }
}

#[test]
fn an_address_that_is_taken_exits_1_and_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address");
    let (_directory, path) =
        file(&format!("listen: {address}\nadmin: off\nmodels: {{m: {{replicas: ['http://127.0.0.1:1']}}}}\n"));
    let output = run(&["run", "--config", &path]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&format!("can't listen on {address}")), "{said}");
}

#[tokio::test]
async fn a_simulated_replica_says_where_it_listens_and_serves() {
    let mut child = spawn(&["replica", "--port", "0", "--model", "tiny", "--time-scale", "1000"]);
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its stdout")).read_line(&mut line).expect("reads");
    let address = line.trim().strip_prefix("http://").and_then(|address| address.parse().ok());
    let address = address.unwrap_or_else(|| panic!("an address, not {line:?}"));
    assert_eq!(call(address, &Call::get("/health")).await.status(), 200);
    let reply = call(address, &Call::post("/v1/chat/completions", chat("hello").to_string())).await;
    assert_eq!(reply.json()["usage"]["completion_tokens"], 2);
    child.kill().expect("ends");
    child.wait().expect("ends");
}
