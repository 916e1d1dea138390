//! A hot upgrade: another process serves from one moment to the next, and no client can tell.

use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::support::call::Call;
use crate::support::client::{Piece, Wire, call};
use crate::support::generations::{Generations, send};
use crate::support::load::{Load, Refusals};
use crate::support::reserved::ReservedPort;
use crate::support::storyteller::{Storyteller, told_to};
use crate::support::{full, until};

const MODEL: &str = "m";

fn models(replicas: &[Storyteller]) -> Value {
    let urls: Vec<_> = replicas.iter().map(Storyteller::url).collect();
    json!({ (MODEL): { "spill_threshold": 1000, "replicas": urls } })
}

fn turn(said: &str) -> Call {
    let body = json!({ "model": MODEL, "stream": true, "messages": [{ "role": "user", "content": said }] });
    Call::post("/v1/chat/completions", body.to_string())
}

/// Reads the rest of a stream.
async fn rest_of(wire: &mut Wire) -> String {
    let mut told = Vec::new();
    loop {
        match wire.piece().await {
            Piece::Data(data) => told.extend_from_slice(&data),
            Piece::End => return String::from_utf8(told).expect("text"),
            Piece::Cut => panic!("cut after {:?}", String::from_utf8_lossy(&told)),
        }
    }
}

#[tokio::test]
async fn upgrades_under_load_refuse_no_connection_and_lose_no_byte_and_no_pin() {
    let (conversations, upgrades) = if full() { (64, 20) } else { (24, 5) };
    let replicas = Storyteller::start_many(4);
    let mut kvpin = Generations::start(models(&replicas)).await;
    let load = Load::begin(kvpin.address(), MODEL, conversations, Refusals::Never).await;
    let probes = Arc::new(AtomicUsize::new(0));
    let prober = tokio::spawn(connect_again_and_again(kvpin.address(), Arc::clone(&probes)));
    let mut replaced = Vec::new();
    for _ in 0..upgrades {
        replaced.push(kvpin.upgrade().await);
        load.until_turns(conversations * 2).await;
    }
    prober.abort();
    assert!(prober.await.is_err_and(|error| error.is_cancelled()), "no connection was refused");
    let figures = load.end().await;
    let probes = probes.load(Ordering::Relaxed);
    println!(
        "{upgrades} upgrades, {conversations} conversations: {figures:?}, and {probes} connections for one request"
    );
    assert_eq!(figures.refused, 0);
    for pid in replaced {
        kvpin.ends(pid).await;
    }
    assert_eq!(kvpin.lines_with(" serves, this one finishes what it has"), upgrades);
    // One that was replaced meanwhile may have ended before it saw it.
    kvpin.until_logged("the process before this one has finished its turns").await;
    // What is said at each start, the second one where the machine is stingy.
    let known = ["max_num_seqs is not configured", "files may be open at a time"].map(|line| kvpin.lines_with(line));
    assert_eq!(kvpin.lines_with("WARN"), known[0] + known[1], "{}", kvpin.log());
}

/// Connects, asks something that kvpin answers itself, and connects again, as a client without kept connections does.
async fn connect_again_and_again(address: SocketAddr, probes: Arc<AtomicUsize>) {
    loop {
        let mut wire = Wire::try_connect(address).await.expect("a connection is not refused");
        let request = Call::get("/v1/models").header("connection", "close");
        assert_eq!(wire.call(&request).await.status(), 200);
        probes.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_stream_goes_on_at_the_old_process_and_its_conversation_at_the_new_one() {
    let replicas = Storyteller::start_many(4);
    let mut kvpin = Generations::start(models(&replicas)).await;
    let mut wire = Wire::connect(kvpin.address()).await;
    let first = turn("hello").of("begun-before");
    let head = wire.begin(&first).await;
    let (home, old) = (head.replica().to_owned(), kvpin.pid);
    kvpin.signal("USR2");
    kvpin.until_logged("serves, this one finishes what it has").await;
    assert_eq!(rest_of(&mut wire).await, told_to(&first.body));

    // Its connection leads to the old process still, and is closed behind the next answer.
    let second = wire.call(&turn("and then?").of("begun-before")).await;
    assert_eq!((second.decision(), second.replica()), ("sticky", home.as_str()));
    assert_eq!(second.header("connection"), Some("close"));
    assert!(wire.ends().await);
    let third = kvpin.call(&turn("at last").of("begun-before")).await;
    assert_eq!((third.decision(), third.replica()), ("sticky", home.as_str()));

    // One that begins at the old process after the new one serves is known there too, when its first turn has ended.
    kvpin.ends(old).await;
    kvpin.pid = kvpin.status().await["kvpin"]["pid"].as_u64().expect("a process id") as u32;
}

#[tokio::test]
async fn a_conversation_that_begins_at_the_old_process_is_known_to_the_new_one() {
    let replicas = Storyteller::start_many(4);
    let mut kvpin = Generations::start(models(&replicas)).await;
    // Connections that are open and idle.
    let mut wires = Vec::new();
    for _ in 0..8 {
        let mut wire = Wire::connect(kvpin.address()).await;
        assert_eq!(wire.call(&Call::get("/v1/models")).await.status(), 200);
        wires.push(wire);
    }
    let old = kvpin.upgrade().await;
    let mut homes = Vec::new();
    for (number, wire) in wires.iter_mut().enumerate() {
        let reply = wire.call(&turn("hello").of(&format!("late-{number}"))).await;
        assert_eq!((reply.status(), reply.decision()), (200, "placed"));
        homes.push(reply.replica().to_owned());
    }
    for (number, home) in homes.iter().enumerate() {
        let reply = kvpin.call(&turn("and then?").of(&format!("late-{number}"))).await;
        assert_eq!((reply.decision(), reply.replica()), ("sticky", home.as_str()), "conversation {number}");
    }
    kvpin.ends(old).await;
}

#[tokio::test]
async fn a_new_process_that_cannot_serve_leaves_everything_as_it_was() {
    let replicas = Storyteller::start_many(2);
    let kvpin = Generations::start(models(&replicas)).await;
    let pid = kvpin.pid;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let good = kvpin.config(models(&replicas));
    let mut another = good.clone();
    another["listen"] = json!([good["listen"], taken.local_addr().expect("its address").to_string()]);
    let load = Load::begin(kvpin.address(), MODEL, 8, Refusals::Never).await;
    for (text, said) in [
        ("models: {m: {replicass: []}}".to_owned(), "exit status: 78"),
        (String::new(), "exit status: 78"),
        (another.to_string(), "exit status: 1"),
    ] {
        kvpin.write("kvpin.yaml", text.as_bytes());
        let upgraded = kvpin.run(&["upgrade", "--admin", &kvpin.admin().to_string()]).await;
        let why = String::from_utf8_lossy(&upgraded.stderr).into_owned();
        assert_eq!(upgraded.status.code(), Some(1), "{why}");
        assert!(why.contains(said), "{why}");
        load.until_turns(16).await;
        let status = kvpin.status().await;
        assert_eq!(status["kvpin"]["pid"], pid);
        let failed = &status["kvpin"]["last_failed_upgrade"]["failed"];
        assert!(failed.as_str().is_some_and(|failed| failed.contains(said)), "{status}");
    }
    assert_eq!(kvpin.metric("kvpin_upgrades_total{outcome=\"failed\"}").await, 3.0);
    assert_eq!(kvpin.lines_with("upgrade failed, this process goes on"), 3);
    load.end().await;
    // And a reload goes on too.
    kvpin.configure(&good);
    kvpin.signal("HUP");
    kvpin.until_logged("reloaded: no changes").await;
}

#[tokio::test]
async fn listeners_change_with_an_upgrade() {
    let replicas = Storyteller::start_many(1);
    let mut kvpin = Generations::start(models(&replicas)).await;
    let second = ReservedPort::new();
    let (first, both) = (kvpin.address(), [kvpin.address().to_string(), second.address().to_string()]);
    let mut config = kvpin.config(models(&replicas));
    config["listen"] = json!(both);
    kvpin.configure(&config);
    kvpin.signal("HUP");
    let line = kvpin.until_logged("reload refused").await;
    assert!(line.contains("listen: it can only change with a new process: `kvpin upgrade`"), "{line}");
    kvpin.upgrade().await;
    for address in [first, second.address()] {
        assert_eq!(call(address, &turn("hello").of("one")).await.status(), 200);
    }
    // Something that keeps the old process busy meanwhile.
    let mut busy = Wire::connect(first).await;
    assert_eq!(busy.call(&Call::get("/v1/models")).await.status(), 200);
    config["listen"] = json!(both[1]);
    kvpin.configure(&config);
    let old = kvpin.upgrade().await;
    kvpin.until_logged(&format!("{first} is not listened on any more")).await;
    assert_eq!(call(second.address(), &turn("hello").of("one")).await.decision(), "sticky");
    until("nobody listens there any more", async || TcpStream::connect(first).await.err()).await;
    assert_eq!(busy.call(&Call::get("/v1/models")).await.status(), 200, "by the old process");
    kvpin.ends(old).await;
}

#[tokio::test]
async fn a_process_that_took_over_and_died_is_replaced_by_the_one_before_it_which_knows_what_it_knew() {
    let replicas = Storyteller::start_many(2);
    let mut kvpin = Generations::start(models(&replicas)).await;
    let mut config = kvpin.config(models(&replicas));
    config["state_interval_s"] = json!(1);
    kvpin.configure(&config);
    // Something that keeps the old process busy meanwhile.
    let mut busy = Wire::connect(kvpin.address()).await;
    assert_eq!(busy.call(&Call::get("/v1/models")).await.status(), 200);
    let home = kvpin.call(&turn("hello").of("one")).await.replica().to_owned();
    let old = kvpin.upgrade().await;
    assert_eq!(kvpin.call(&turn("hello").of("one")).await.decision(), "sticky");
    let second_home = kvpin.call(&turn("hello").of("two")).await.replica().to_owned();
    config["models"][MODEL]["aliases"] = json!(["other"]);
    kvpin.configure(&config);
    kvpin.signal("HUP");
    kvpin.until_logged("reloaded: model m: aliases: [] -> [other]").await;
    let writes = async || kvpin.metric("kvpin_state_writes_total{outcome=\"written\"").await;
    let written = writes().await;
    assert_eq!(kvpin.call(&turn("hello").of("two")).await.decision(), "sticky");
    until("it is written", async || (writes().await > written).then_some(())).await;

    let crashed = std::mem::replace(&mut kvpin.pid, old);
    send("KILL", crashed);
    kvpin.until_logged("this one serves again").await;
    for (conversation, home) in [("one", home), ("two", second_home)] {
        let reply = kvpin.call(&turn("hello").of(conversation)).await;
        assert_eq!((reply.decision(), reply.replica()), ("sticky", home.as_str()), "{conversation}");
    }
    until("it serves by the same configuration", async || {
        (kvpin.call(&Call::get("/v1/models")).await.text().contains("other")).then_some(())
    })
    .await;
    assert_eq!(kvpin.status().await["kvpin"]["pid"], old);
    assert_eq!(busy.call(&turn("hello").of("one")).await.decision(), "sticky");
    // And it can be upgraded and stopped as ever.
    kvpin.upgrade().await;
    kvpin.stop().await;
    until("nobody listens", async || TcpStream::connect(kvpin.address()).await.err()).await;
}

#[tokio::test]
async fn a_stop_during_and_after_an_upgrade_ends_both_processes() {
    let replicas = Storyteller::start_many(1);
    let mut kvpin = Generations::start(models(&replicas)).await;
    let mut idle = Wire::connect(kvpin.address()).await;
    assert_eq!(idle.call(&Call::get("/v1/models")).await.status(), 200);
    let old = kvpin.upgrade().await;
    send("TERM", old);
    kvpin.ends(old).await;
    assert!(idle.ends().await);
    assert_eq!(kvpin.call(&turn("hello").of("one")).await.status(), 200, "the new one serves on");
    kvpin.stop().await;
    kvpin.begin().await;
    assert_eq!(kvpin.call(&turn("hello").of("one")).await.decision(), "sticky");
}

#[tokio::test]
async fn two_upgrades_at_once_are_one() {
    let replicas = Storyteller::start_many(1);
    let mut kvpin = Generations::start(models(&replicas)).await;
    // The old process has something to finish, so that it stays.
    let mut wire = Wire::connect(kvpin.address()).await;
    assert_eq!(wire.call(&Call::get("/v1/models")).await.status(), 200);
    let admin = kvpin.admin().to_string();
    let arguments = ["upgrade", "--admin", &admin];
    let (one, other) = tokio::join!(kvpin.run(&arguments), kvpin.run(&arguments));
    let done = [&one, &other].iter().filter(|output| output.status.success()).count();
    // One that comes when the first is done is another one, and as good.
    let refused = kvpin.lines_with("upgrade refused: an upgrade goes on already");
    assert_eq!(done + refused, 2, "{}", kvpin.log());
    let old = kvpin.pid;
    // Either of them may take the next connections for a moment.
    let answers = async || kvpin.status().await["kvpin"]["pid"].as_u64().filter(|pid| *pid != u64::from(old));
    let new = until("the new process answers", answers).await;
    kvpin.pid = new as u32;
    if refused == 0 {
        // Then there are three, and the one between them may have ended already.
        return;
    }
    // What the old process is told from here on is the new one's affair.
    send("USR2", old);
    kvpin.until_logged("upgrade refused: another process serves already").await;
    send("HUP", old);
    until("the new one reloads", async || (kvpin.metric("kvpin_reloads_total").await == 1.0).then_some(())).await;
}

#[tokio::test]
async fn systemd_is_told_who_serves_and_what_it_does() {
    let replicas = Storyteller::start_many(1);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_nonblocking(true).expect("doesn't block");
    let said = async || {
        until("systemd is told", async || {
            let mut buffer = [0; 4096];
            let length = socket.recv(&mut buffer).ok()?;
            Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
        })
        .await
    };
    let path = path.to_str().expect("a path of text");
    let mut kvpin = Generations::start_with(models(&replicas), &[("NOTIFY_SOCKET", path)]).await;
    let serving = format!("READY=1\nSTATUS=serving 1 model on {}", kvpin.address());
    assert_eq!(said().await.trim_end(), serving);
    kvpin.signal("HUP");
    let reloading = said().await;
    let monotonic = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("what systemd wants to know");
    assert!(monotonic.trim_end().parse::<u64>().is_ok(), "{reloading}");
    assert_eq!(said().await.trim_end(), serving);
    kvpin.upgrade().await;
    assert_eq!(said().await.trim_end(), format!("MAINPID={}", kvpin.pid));
    assert_eq!(said().await.trim_end(), serving);
    kvpin.stop().await;
    assert!(said().await.starts_with("STOPPING=1\n"));
}

#[tokio::test]
async fn an_upgrade_does_not_wait_for_the_next_look_to_know_a_replica_that_is_down() {
    let replicas = Storyteller::start_many(2);
    let gone = ReservedPort::new();
    let mut all = models(&replicas);
    all[MODEL]["replicas"].as_array_mut().expect("replicas").push(json!(format!("http://{}", gone.address())));
    let mut kvpin = Generations::start(models(&replicas)).await;
    kvpin.configure(&kvpin.config(all));
    kvpin.upgrade().await;
    let status = kvpin.status().await;
    let health: Vec<_> = status["models"][0]["replicas"]
        .as_array()
        .expect("replicas")
        .iter()
        .map(|replica| replica["health"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(health, ["up", "up", "down"]);
    tokio::time::timeout(Duration::from_secs(20), async {
        for number in 0..6 {
            let reply = kvpin.call(&turn("hello").of(&format!("new-{number}"))).await;
            assert_ne!(reply.replica(), gone.address().to_string());
        }
    })
    .await
    .expect("turns are served");
}
