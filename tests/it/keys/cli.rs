//! `kvpin keys`, and the admin token of the subcommands that ask a kvpin that serves.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::support::call::Call;
use crate::support::client::call;
use crate::support::keys::{KEYS_FILE, guarded, key_of};
use crate::support::kvpin::{BINARY, Kvpin, config, run};
use crate::support::recorder::Recorder;
use crate::support::until;

const TOKEN: &str = "token-of-the-admin-2b8e61";

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn ok(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    out(&output)
}

fn run_with(arguments: &[&str], stdin: &str, token: Option<&str>) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("KVPIN_ADMIN_TOKEN").envs(token.map(|token| ("KVPIN_ADMIN_TOKEN", token)));
    let mut child = command.spawn().expect("kvpin starts");
    // It may end without reading.
    child.stdin.take().expect("its stdin").write_all(stdin.as_bytes()).ok();
    child.wait_with_output().expect("it ends")
}

#[tokio::test]
async fn a_key_is_made_shown_once_replaced_and_removed_and_kvpin_takes_each_over_on_sighup() {
    let recorder = Recorder::start();
    let models = json!({ "m": { "replicas": [recorder.url()], "aliases": ["n"] } });
    let kvpin = Kvpin::launch_with(&guarded(models), &[(KEYS_FILE, "# who may ask\n")]).await;
    kvpin.until_health("up", |_| true).await;
    let config = kvpin.file("kvpin.yaml");
    let keys = |arguments: &[&str]| run(&[&["keys"], arguments, &["--config", &config]].concat());
    let status = async |key: &str, model: &str| {
        let turn = Call::post("/v1/messages", json!({ "model": model }).to_string());
        kvpin.call(&turn.header("x-api-key", key)).await.status()
    };
    let reload = async || kvpin.reload_with("touched", "").await;
    let first = ok(keys(&["add", "alice", "--models", "m,x", "--in-flight-max", "2"]));
    assert!(first.starts_with("kvp_") && first.len() == 76, "{first}");
    assert_eq!(status(&first, "m").await, 401, "not before the reload");
    assert!(reload().await);
    assert_eq!((status(&first, "m").await, status(&first, "n").await), (200, 403));
    let second = ok(keys(&["rotate", "alice"]));
    assert!(reload().await);
    assert_eq!((status(&first, "m").await, status(&second, "m").await), (200, 200));
    assert!(ok(keys(&["list"])).contains("alice (being replaced)"));
    ok(keys(&["rotate", "alice", "--end"]));
    assert!(reload().await);
    assert_eq!((status(&first, "m").await, status(&second, "m").await), (401, 200));
    let object: Value = serde_json::from_str(&ok(keys(&["add", "bob@example.org", "--json"]))).expect("JSON");
    assert_eq!((&object["name"], object["key"].as_str().map(str::len)), (&json!("bob@example.org"), Some(76)));
    let list: Value = serde_json::from_str(&ok(keys(&["list", "--json"]))).expect("JSON");
    let alice = json!({ "name": "alice", "keys": 1, "models": ["m", "x"], "may_pin": false, "in_flight_max": 2,
        "requests_per_minute_max": null });
    assert_eq!((&list["keys"][0], &list["keys"][1]["name"]), (&alice, &json!("bob@example.org")));
    ok(keys(&["remove", "alice"]));
    assert!(reload().await);
    assert_eq!(status(&second, "m").await, 401);
    assert_eq!(status(object["key"].as_str().unwrap_or_default(), "n").await, 200);
    let file = std::fs::read_to_string(kvpin.file(KEYS_FILE)).expect("the file");
    assert!(file.starts_with("# who may ask\n") && !file.contains("kvp_") && !file.contains("alice"), "{file}");
}

#[test]
fn a_key_of_ones_own_is_taken_from_stdin_and_never_printed() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("keys.yaml").to_str().expect("text").to_owned();
    let add = |name: &str, key: &str| run_with(&["keys", "add", name, "--key-from-stdin", "--file", &file], key, None);
    let output = add("alice", &format!("{}\n", key_of("alice")));
    assert_eq!((output.status.code(), out(&output)), (Some(0), String::new()));
    assert!(!err(&output).contains(&key_of("alice")));
    let text = std::fs::read_to_string(&file).expect("the file");
    assert!(text.contains(&crate::support::keys::hash_of("alice")), "{text}");
    let made = out(&run(&["keys", "add", "bob", "--file", &file]));
    for (name, key, said) in [
        ("short", "too-short", "has 9 bytes"),
        ("empty", "\n", "there is nothing in it"),
        ("words", "two words that are long enough", "more in it than one word"),
        ("long", &*"k".repeat(1025), "more than 1024 bytes"),
        ("mistyped", &made[..75], "check digits are wrong"),
        ("again", &made, "`bob` has this key already"),
        ("alice", "another-key-that-is-long-enough", "there is a key of the name `alice` already"),
    ] {
        let output = add(name, key);
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(
            err(&output).contains(said) && !err(&output).contains(key.trim_end().get(..20).unwrap_or("\0")),
            "{}",
            err(&output)
        );
    }
    assert_eq!(std::fs::read_to_string(&file).expect("the file").lines().count(), 4, "nothing of these was written");
}

#[test]
fn wrong_usage_of_keys_is_said_clearly() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("text").to_owned();
    std::fs::write(path("open.yaml"), "models: {m: {replicas: ['http://127.0.0.1:1']}}\n").expect("writes");
    std::fs::write(path("keyed.yaml"), "keys_file: keys.yaml\nmodels: {}\n").expect("writes");
    std::fs::write(path("broken.yaml"), "alice: [\n").expect("writes");
    for (arguments, code, said) in [
        (&["keys", "add", "alice"][..], 64, "--config"),
        (&["keys", "add", "alice", "--file", "a", "--config", "b"], 64, "cannot be used with"),
        (&["keys", "add", "alice", "--config", &path("open.yaml")], 78, "it names no keys file"),
        (&["keys", "add", "alice", "--config", &path("none.yaml")], 78, "No such file"),
        (&["keys", "add", "a b", "--file", &path("new.yaml")], 1, "a key's name has"),
        (&["keys", "add", "kvp_x", "--file", &path("new.yaml")], 1, "a name doesn't begin with kvp_"),
        (&["keys", "add", "a", "--in-flight-max", "0", "--file", &path("new.yaml")], 1, "0 is not 1 to 65536"),
        (&["keys", "add", "a", "--file", "/nonexistent/keys.yaml"], 1, "/nonexistent"),
        (&["keys", "add", "a", "--file", &path("broken.yaml")], 1, "line 2"),
        (&["keys", "list", "--file", &path("none.yaml")], 1, "can't read"),
        (&["keys", "remove", "a", "--file", &path("broken.yaml")], 1, "line 2"),
        // A configuration that doesn't hold without the file is enough to make it.
        (&["keys", "add", "alice", "--config", &path("keyed.yaml")], 0, "shown this once"),
        (&["keys", "remove", "nobody", "--config", &path("keyed.yaml")], 1, "there is no key of the name `nobody`"),
        (&["keys", "rotate", "nobody", "--config", &path("keyed.yaml")], 1, "there is no key of the name `nobody`"),
        (&["keys", "rotate", "alice", "--end", "--config", &path("keyed.yaml")], 1, "there is nothing to end"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains(said), "{arguments:?}: {}", err(&output));
    }
    assert!(!std::fs::exists(path("new.yaml")).unwrap_or(true), "what was refused made no file");
}

#[tokio::test]
async fn with_a_token_the_admin_listener_serves_its_holders_and_commands_find_it() {
    let recorder = Recorder::start();
    let mut config = config(json!({ "m": { "replicas": [recorder.url()] } }));
    config["admin_token_file"] = json!("token");
    let kvpin =
        Kvpin::launch_with(&config, &[("token", &format!("{TOKEN}\n")), ("wrong", "wrong"), ("right", TOKEN)]).await;
    let get = async |path: &str, token: Option<&str>| {
        let page = Call::get(path);
        let page = token.map_or(page.clone(), |token| page.header("Authorization", format!("Bearer {token}")));
        call(kvpin.admin, &page).await
    };
    until("the replica is up", async || {
        get("/metrics", Some(TOKEN)).await.text().contains("kvpin_replica_up{model=\"m\",replica=").then_some(())
    })
    .await;
    for path in [
        "/api",
        "/metrics",
        "/api/v1/status",
        "/api/v1/live",
        "/api/v1/history",
        "/api/v1/conversations",
        "/api/v1/explain",
        "/nothing",
    ] {
        for token in [None, Some("wrong"), Some(&TOKEN[1..])] {
            let reply = get(path, token).await;
            assert_eq!((reply.status(), reply.header("www-authenticate")), (401, Some("Bearer")), "{path}");
        }
    }
    // Each kvpin has the same page; what it shows takes the token.
    for path in ["/health", "/", "/page/main.js"] {
        assert_eq!(get(path, None).await.status(), 200, "{path}");
    }
    assert_eq!(get("/metrics", Some(TOKEN)).await.status(), 200);
    let order = Call::post("/api/v1/drain", json!({ "model": "m", "replica": recorder.name() }).to_string());
    assert_eq!(call(kvpin.admin, &order).await.status(), 401);
    // The file has port 0, which the commands can't know: the ones with --config are asked with the port that was given.
    let (admin, target) = (kvpin.admin.to_string(), format!("m/{}", recorder.name()));
    config["admin"] = json!(admin);
    let asking = kvpin.file("asking.yaml");
    std::fs::write(&asking, config.to_string()).expect("writes");
    let (wrong, right) = (kvpin.file("wrong"), kvpin.file("right"));
    let request = String::from_utf8(Call::post("/v1/messages", r#"{"model":"m"}"#).bytes()).expect("text");
    let cases: [(&[&str], Option<&str>, i32); 8] = [
        (&["drain", &target, "--admin", &admin], None, 1),
        (&["drain", &target, "--admin", &admin, "--token-file", &wrong], Some(TOKEN), 1),
        (&["drain", &target, "--admin", &admin, "--token-file", &right], None, 0),
        (&["undrain", &target, "--admin", &admin], Some(TOKEN), 0),
        (&["drain", &target, "--config", &asking], Some("wrong"), 0),
        (&["undrain", &target, "--config", &asking], None, 0),
        (&["explain", "--config", &asking], None, 0),
        (&["explain", "--config", &asking, "--token-file", &wrong], None, 1),
    ];
    for (arguments, token, code) in cases {
        let (arguments, token, request): (Vec<_>, _, _) =
            (arguments.iter().map(|text| (*text).to_owned()).collect(), token.map(str::to_owned), request.clone());
        let run = move || {
            let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
            (run_with(&arguments, &request, token.as_deref()), arguments.join(" "))
        };
        let (output, what) = spawn_blocking(run).await.expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{what}: {}", err(&output));
        assert!(code == 0 || err(&output).contains("admin token"), "{what}: {}", err(&output));
        assert!(!(out(&output) + &err(&output)).contains(TOKEN), "{what}");
    }
    // A new token holds from the reload on.
    std::fs::write(kvpin.file("token"), "another-token-of-the-admin").expect("writes");
    kvpin.signal("HUP");
    kvpin.until_logged("admin token changed").await;
    assert_eq!(get("/metrics", Some(TOKEN)).await.status(), 401);
    assert_eq!(get("/metrics", Some("another-token-of-the-admin")).await.status(), 200);
}

#[tokio::test]
async fn without_a_token_no_page_in_a_browser_gives_orders() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let order = |host: &str| {
        let body = json!({ "model": "m", "replica": recorder.name() }).to_string();
        format!(
            "POST /api/v1/drain HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    for (host, status) in [("evil.example", 403), ("evil.example:9180", 403), ("127.0.0.1", 200), ("localhost:1", 200)]
    {
        let mut wire = crate::support::client::Wire::connect(kvpin.admin).await;
        wire.send(order(host).as_bytes()).await;
        assert_eq!(wire.reply("POST").await.map(|reply| reply.status()), Some(status), "{host}");
    }
}
