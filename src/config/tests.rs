//! Whole files: what they mean, and what is wrong with them.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;

use super::*;

/// Knows two hosts and no network.
fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match host {
        "localhost" => Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]),
        "gpu-box" => Ok(vec![SocketAddr::from(([10, 0, 0, 5], port))]),
        _ => Err(io::Error::other("no such host")),
    }
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::read_in(FilePath::new("/nonexistent"), text, &resolve)
}

fn valid(text: &str) -> Config {
    parse(text).unwrap_or_else(|err| panic!("{err}\nin\n{text}"))
}

fn refused(text: &str) -> String {
    match parse(text) {
        Ok(_) => panic!("this should be refused:\n{text}"),
        Err(err) => err.to_string(),
    }
}

/// One model `m` whose body is `keys`, at line 3 and below, with a replica after it.
fn with_model(keys: &str) -> String {
    format!("models:\n  m:\n{keys}    replicas: [http://127.0.0.1:8000]\n")
}

/// `keys` from line 1 on, and a model after them.
fn with_top(keys: &str) -> String {
    format!("{keys}models: {{m: {{replicas: [http://127.0.0.1:8000]}}}}\n")
}

/// One model `m` whose replicas are `entries`, from line 4 on.
fn with_replicas(entries: &str) -> String {
    format!("models:\n  m:\n    replicas:\n{entries}")
}

fn names(model: &ModelConfig) -> Vec<&str> {
    model.replicas.iter().map(|r| &*r.name).collect()
}

#[test]
fn the_shortest_file_gets_every_default() {
    let config = valid(include_str!("../../conf/minimal.yaml"));
    let replica = |port: u16| ReplicaConfig {
        name: format!("127.0.0.1:{port}"),
        address: SocketAddr::from(([127, 0, 0, 1], port)),
        authority: format!("127.0.0.1:{port}"),
        rank: None,
        data_parallel_size: 1,
        drain: false,
        gpus: Vec::new(),
        tls: None,
    };
    let health = HealthConfig {
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(5),
        failures: 3,
        successes: 2,
        backoff_max: Duration::from_secs(5),
        hung: Duration::from_secs(30),
        ramp: Duration::from_secs(30),
    };
    let expected = Config {
        health,
        listen: vec![ListenConfig { address: SocketAddr::from(([127, 0, 0, 1], 8080)), tls: None }],
        keys: None,
        allow_anonymous: false,
        admin: Some(SocketAddr::from(([127, 0, 0, 1], 9180))),
        admin_token: None,
        default_model: None,
        session_headers: Vec::new(),
        decision_headers: true,
        allow_paths: Vec::new(),
        trusted_proxies: Vec::new(),
        access_log: AccessLogConfig { to: AccessLogTo::Stderr, format: AccessLogFormat::Text },
        limits: Limits {
            body_bytes_max: 32 << 20,
            head_bytes_max: 64 << 10,
            head_timeout: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(60),
            body_rate_min: 1024,
            connections_max: 16_384,
            connections_per_address_max: 4096,
            streams_max: 8192,
            write_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_millis(1500),
            replay_bytes_max: 8 << 20,
            replay_memory_bytes_max: 512 << 20,
            history_wait: Duration::from_millis(5),
            response_timeout: Duration::from_secs(600),
            ping_interval: Some(Duration::from_secs(15)),
            tries_max: 8,
            breaks_max: 2,
        },
        scrape_interval: Duration::from_secs(1),
        shutdown_grace: Duration::from_secs(600),
        state_file: StateFile::Default,
        state_interval: Duration::from_secs(60),
        nvml: NvmlConfig::Auto,
        models: vec![ModelConfig {
            name: "qwen3-4b".to_owned(),
            aliases: Vec::new(),
            affinity: true,
            affinity_ordered: false,
            balancing: Balancing::LeastLoaded,
            max_num_seqs: None,
            spill_threshold: SpillThreshold::Auto,
            admission: AdmissionConfig {
                mode: AdmissionMode::Auto,
                kv_cache_tokens: None,
                held_max: 1_000,
                hold_max: Duration::from_secs(300),
            },
            client_pins: true,
            send_session_id: true,
            upstream_key: None,
            conversations_max: 1_000_000,
            conversation_idle: Duration::from_secs(3600),
            replicas: vec![replica(8000), replica(8001)],
        }],
    };
    assert_eq!(config, expected);
    assert_eq!(config.limits, Limits::default());
}

#[test]
fn the_commented_file_states_the_defaults() {
    let commented = valid(include_str!("../../conf/kvpin.yaml"));
    let minimal = valid(include_str!("../../conf/minimal.yaml"));
    assert_eq!(commented, minimal);
}

#[test]
fn the_commented_file_has_every_key() {
    let commented = include_str!("../../conf/kvpin.yaml");
    let mut keys = BTreeSet::new();
    for text in [
        with_top("zzz: 1\n"),
        with_top("limits: {zzz: 1}\n"),
        with_top("access_log: {zzz: 1}\n"),
        with_model("    zzz: 1\n"),
        with_replicas("      - {zzz: 1}\n"),
        with_top("listen: {address: '127.0.0.1:1', zzz: 1}\n"),
        with_top("listen: [{address: '127.0.0.1:1', tls: {zzz: 1}}]\n"),
    ] {
        // serde lists the keys that it knows: "unknown field `zzz`, expected one of `listen`, `admin`".
        let err = refused(&text);
        let known = err.split_once("expected").expect("a list of keys").1;
        keys.extend(known.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    assert!(keys.len() > 25, "{keys:?}");
    for key in keys {
        assert!(commented.contains(&format!("{key}:")), "{key}");
    }
}

#[test]
fn every_file_in_conf_is_valid() {
    let conf = concat!(env!("CARGO_MANIFEST_DIR"), "/conf");
    // They are copied to where the files are that they name.
    let dir = directory_with(&alice());
    write_certificates(&dir.path().join("tls"));
    let mut files = 0;
    for entry in std::fs::read_dir(conf).expect("the directory conf") {
        let path = entry.expect("an entry of conf").path();
        // What watches kvpin stands in a directory of its own.
        if path.is_dir() {
            continue;
        }
        let copy = dir.path().join(path.file_name().expect("a name"));
        std::fs::copy(&path, &copy).expect("copies it");
        Config::load(&copy).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        files += 1;
    }
    assert!(files >= 4, "{files}");
}

/// What the files in conf name, in the directory `tls` beside them.
fn write_certificates(dir: &FilePath) {
    std::fs::create_dir(dir).expect("a directory");
    for (name, host) in [("gpu.example", "gpu.example"), ("any.lab.example", "*.lab.example"), ("kvpin", "kvpin")] {
        let files = crate::tls::tests::issue(dir, name, &[host]);
        std::fs::rename(&files.key, dir.join(format!("{name}.key"))).expect("renames it");
    }
    crate::tls::tests::issue(dir, "clients-ca", &[]);
    crate::tls::tests::issue(dir, "boxes-ca", &[]);
}

#[test]
fn seven_servers_are_seven_replicas_and_several_models_have_a_default() {
    let seven = valid(include_str!("../../conf/seven-cards.yaml"));
    let expected: Vec<_> = (0..7).map(|gpu| format!("gpu-{gpu}")).collect();
    assert_eq!(names(&seven.models[0]), expected);
    let several = valid(include_str!("../../conf/several-models.yaml"));
    let models: Vec<_> =
        several.models.iter().map(|model| (&*model.name, model.replicas.len(), model.affinity)).collect();
    assert_eq!(models, [("qwen3-32b", 2, true), ("qwen3-4b", 1, true), ("qwen3-embedding-0.6b", 2, false)]);
    assert_eq!(several.default_model.as_deref(), Some("qwen3-32b"));
}

#[test]
fn each_rank_of_a_server_is_a_replica() {
    let config = valid(include_str!("../../conf/four-cards.yaml"));
    let model = &config.models[0];
    let expected = ["127.0.0.1:8000/0", "127.0.0.1:8000/1", "127.0.0.1:8000/2", "127.0.0.1:8000/3", "spare"];
    assert_eq!(names(model), expected);
    let ranks: Vec<_> = model.replicas.iter().map(|r| r.rank).collect();
    assert_eq!(ranks, [Some(0), Some(1), Some(2), Some(3), None]);
    let sizes: Vec<_> = model.replicas.iter().map(|r| r.data_parallel_size).collect();
    assert_eq!(sizes, [4, 4, 4, 4, 1]);
}

#[test]
fn a_ranked_server_is_one_replica_where_the_engine_balances() {
    for (keys, expected) in [
        ("affinity: false, balancing: engine", vec!["n"]),
        ("affinity: false, balancing: least_loaded", vec!["n/0", "n/1"]),
        ("affinity: false", vec!["n/0", "n/1"]),
        ("affinity: true", vec!["n/0", "n/1"]),
    ] {
        let text =
            format!("models: {{m: {{{keys}, replicas: [{{url: 'http://gpu-box', name: n, data_parallel_size: 2}}]}}}}");
        let model = &valid(&text).models[0];
        assert_eq!(names(model), expected, "{keys}");
        assert!(model.replicas.iter().all(|r| r.data_parallel_size == 2), "{keys}");
    }
}

#[test]
fn one_rank_is_no_rank() {
    let text = with_replicas("      - {url: 'http://gpu-box', name: spare, data_parallel_size: 1}\n");
    let replica = &valid(&text).models[0].replicas[0];
    assert_eq!(replica.name, "spare");
    assert_eq!(replica.rank, None);
    assert_eq!(replica.address, SocketAddr::from(([10, 0, 0, 5], 80)));
    assert_eq!(replica.authority, "gpu-box:80");
}

#[test]
fn models_keep_the_order_of_the_file() {
    let text = "models:\n  z: {replicas: [http://127.0.0.1:1]}\n  a: {replicas: [http://127.0.0.1:2]}\n  \
                m: {replicas: [http://127.0.0.1:3]}\n";
    let config = valid(text);
    let names: Vec<_> = config.models.iter().map(|m| &*m.name).collect();
    assert_eq!(names, ["z", "a", "m"]);
}

#[test]
fn what_an_operator_may_write_is_accepted() {
    for text in [
        with_top("listen: 0.0.0.0:0\nallow_anonymous: true\n"),
        with_top("listen: ['127.0.0.2:80', '[::1]:80', '[::ffff:127.0.0.1]:81']\n"),
        with_top("listen: ['[::1]:8080', 127.0.0.1:8080]\n"),
        with_top("listen: [127.0.0.1:0, 127.0.0.1:0]\nadmin: 127.0.0.1:0\n"),
        with_top("admin: off\n"),
        with_top("default_model: m\n"),
        with_top("state_file: off\n"),
        with_top("state_file: /var/lib/kvpin/state\nstate_interval_s: 1\n"),
        with_top("limits: {body_bytes_max: 1GiB, head_bytes_max: 65536, replay_bytes_max: 64 KiB}\n"),
        with_top("limits: {}\n"),
        with_top("limits: {ping_interval_s: 0, tries_max: 1, breaks_max: 1}\n"),
        with_model("    aliases: [claude-sonnet-4-5, Qwen/Qwen3-4B, 123]\n"),
        with_model("    aliases: [a, {name: b}, {name: c, upstream: m}]\n"),
        with_top("session_headers: [X-Chat, x-team-conversation]\ndecision_headers: false\n"),
        with_model("    max_num_seqs: 8\n    spill_threshold: 8\n"),
        with_model("    spill_threshold: 64\n"),
        with_model("    affinity: false\n    balancing: least_loaded\n"),
        with_replicas("      - http://localhost:8000/\n"),
        with_replicas("      - http://127.0.0.1:8000\n      - http://127.0.0.1:8001\n"),
        "default_model: a\nmodels: {m: {aliases: [a], replicas: [http://127.0.0.1:8000]}}\n".to_owned(),
        "models: {a: {replicas: [{url: 'http://127.0.0.1:1', name: x}]}, b: {replicas: [{url: 'http://127.0.0.1:2', name: x}]}}"
            .to_owned(),
    ] {
        valid(&text);
    }
}

#[test]
fn sizes_are_numbers_of_bytes_or_have_a_binary_unit() {
    for (size, expected) in
        [("4096", 4096), ("'4096'", 4096), ("4096B", 4096), ("64KiB", 64 << 10), ("1 MiB", 1 << 20), ("2GiB", 2 << 30)]
    {
        let text = with_top(&format!("limits: {{body_bytes_max: {size}}}\n"));
        assert_eq!(valid(&text).limits.body_bytes_max, expected, "{size}");
    }
}

#[test]
fn a_refusal_names_line_path_and_reason() {
    let long = "n".repeat(257);
    let cases = [
        // The form of the file.
        (String::new(), "the file is empty"),
        ("# nothing\n".to_owned(), "the file is empty"),
        (with_top("listen: [\n"), "line 3: did not find expected"),
        (with_top("listenn: 127.0.0.1:1\n"), "line 1: unknown field `listenn`"),
        (with_top("limits:\n  body: 1\n"), "line 2: limits: unknown field `body`"),
        (with_model("    alias: [x]\n"), "line 3: models.m: unknown field `alias`"),
        (
            with_replicas("      - url: http://127.0.0.1:8000\n        rank: 1\n"),
            "line 5: models.m.replicas[0]: unknown field `rank`",
        ),
        (with_replicas("      - name: x\n"), "line 4: models.m.replicas[0]: missing field `url`"),
        (with_top("admin: off\nadmin: off\n"), "line 2: admin: the key comes twice"),
        (
            "models:\n  m: {replicas: [http://127.0.0.1:1]}\n  m: {replicas: [http://127.0.0.1:2]}\n".to_owned(),
            "line 3: models.m: the key comes twice",
        ),
        (with_model("    affinity: true\n    affinity: false\n"), "line 4: models.m.affinity: the key comes twice"),
        ("listen: 127.0.0.1:1\nmodels:\n".to_owned(), "line 2: models: there is no value"),
        (with_model("    client_pins:\n"), "line 3: models.m.client_pins: there is no value"),
        (with_model("    affinity: !yes true\n"), "line 3: models.m.affinity: invalid type"),
        (with_model("    affinity: maybe\n"), "line 3: models.m.affinity: invalid type: string \"maybe\""),
        (with_model("    max_num_seqs: -1\n"), "line 3: models.m.max_num_seqs: invalid type: integer `-1`"),
        (with_model("    max_num_seqs: 1.5\n"), "line 3: models.m.max_num_seqs: invalid type"),
        (with_model("    spill_threshold: some\n"), "line 3: models.m.spill_threshold: invalid value"),
        (with_model("    balancing: random\n"), "line 3: models.m.balancing: unknown variant `random`"),
        (with_top("limits:\n  body_bytes_max: 32MB\n"), "line 2: limits.body_bytes_max: invalid value"),
        (with_top("limits:\n  body_bytes_max: 99999999999GiB\n"), "line 2: limits.body_bytes_max: invalid value"),
        ("models:\n  my model:\n    affinity: maybe\n".to_owned(), "line 3: models.my model.affinity: invalid type"),
        (
            "models:\n  \"a\\nb\":\n    replicas: [http://127.0.0.1:1]\n".to_owned(),
            "line 2: models.a\\nb: the name has a control character",
        ),
        // Numbers out of bounds.
        (with_top("scrape_interval_ms: 49\n"), "line 1: scrape_interval_ms: 49 is not 50 to 60000"),
        (with_top("shutdown_grace_s: 0\n"), "line 1: shutdown_grace_s: 0 is not"),
        (with_top("limits:\n  history_wait_ms: 0\n"), "line 2: limits.history_wait_ms: 0 is not"),
        (with_top("limits:\n  response_timeout_s: 0\n"), "line 2: limits.response_timeout_s: 0 is not"),
        (with_top("limits:\n  ping_interval_s: 3601\n"), "line 2: limits.ping_interval_s: 3601 is not 0 to 3600"),
        (with_top("limits:\n  breaks_max: 0\n"), "line 2: limits.breaks_max: 0 is not"),
        (
            with_top("limits:\n  head_bytes_max: 1MiB\n"),
            "line 2: limits.head_bytes_max: 1048576 is not 1024 to 1048575",
        ),
        (
            with_top("limits:\n  replay_bytes_max: 2MiB\n  replay_memory_bytes_max: 1MiB\n"),
            "line 2: limits.replay_bytes_max: 2097152 for one turn is more than the 1048576",
        ),
        (with_model("    max_num_seqs: 0\n"), "line 3: models.m.max_num_seqs: 0 is not 1 to"),
        (with_model("    conversations_max: 0\n"), "line 3: models.m.conversations_max: 0 is not 1 to"),
        (with_model("    conversation_idle_s: 0\n"), "line 3: models.m.conversation_idle_s: 0 is not 1 to"),
        (
            with_model("    admission: some\n"),
            "line 3: models.m.admission: unknown variant `some`, expected one of `off`, `auto`, `fair`",
        ),
        (with_model("    kv_cache_tokens: 12\n"), "line 3: models.m.kv_cache_tokens: 12 is not 1000 to"),
        (with_model("    hold_max_s: 0\n"), "line 3: models.m.hold_max_s: 0 is not 1 to"),
        (with_model("    spill_threshold: 0\n"), "line 3: models.m.spill_threshold: 0 is not 1 to"),
        (
            with_model("    max_num_seqs: 8\n    spill_threshold: 9\n"),
            "line 4: models.m.spill_threshold: 9 is more than max_num_seqs 8",
        ),
        (
            with_replicas("      - url: http://127.0.0.1:1\n        data_parallel_size: 0\n"),
            "line 5: models.m.replicas[0].data_parallel_size: 0 is not 1 to 1024",
        ),
        (
            with_replicas("      - url: http://127.0.0.1:1\n        data_parallel_size: 1025\n"),
            "line 5: models.m.replicas[0].data_parallel_size: 1025 is not 1 to 1024",
        ),
        (
            with_replicas(
                "      - {url: 'http://127.0.0.1:1', data_parallel_size: 1024}\n      - http://127.0.0.1:2\n",
            ),
            "line 3: models.m.replicas: 1025 replicas (ranks counted) are more than 1024",
        ),
        // Names.
        ("models: {}\n".to_owned(), "line 1: models: no model is given"),
        ("listen: 127.0.0.1:1\n".to_owned(), "models: no model is given"),
        ("models:\n  m: {}\n".to_owned(), "line 2: models.m.replicas: no replica is given"),
        ("models:\n  m:\n    replicas: []\n".to_owned(), "line 3: models.m.replicas: no replica is given"),
        ("models:\n  '': {replicas: [http://127.0.0.1:1]}\n".to_owned(), "line 2: models.: the name is empty"),
        (with_model("    aliases: ['']\n"), "line 3: models.m.aliases[0]: the name is empty"),
        (with_model("    aliases: [\"a\\tb\"]\n"), "line 3: models.m.aliases[0]: the name has a control character"),
        (
            with_model(&format!("    aliases:\n      - x\n      - {long}\n")),
            "line 5: models.m.aliases[1]: the name is longer than 256 bytes",
        ),
        (
            with_model("    aliases: [{name: x, upstream: ''}]\n"),
            "line 3: models.m.aliases[0].upstream: the name is empty",
        ),
        (
            with_top("session_headers: ['x session']\n"),
            "line 1: session_headers[0]: `x session` is not the name of a header",
        ),
        (
            with_top("session_headers: [x-mine, X-Request-Id]\n"),
            "line 1: session_headers[1]: `X-Request-Id` tells people, programs or requests apart, and no conversations",
        ),
        (
            with_top(&format!("session_headers: [{}]\n", vec!["x"; 17].join(", "))),
            "line 1: session_headers: 17 headers are more than 16",
        ),
        (with_model("    aliases: [m]\n"), "line 3: models.m.aliases[0]: `m` leads to model `m` already"),
        (with_model("    aliases: [x, x]\n"), "line 3: models.m.aliases[1]: `x` leads to model `m` already"),
        (
            "models:\n  a: {aliases: [b], replicas: [http://127.0.0.1:1]}\n  b: {replicas: [http://127.0.0.1:2]}\n"
                .to_owned(),
            "line 2: models.a.aliases[0]: `b` leads to model `b` already",
        ),
        (with_top("default_model: x\n"), "line 1: default_model: no model has the name or alias `x`"),
        (
            with_replicas("      - url: http://127.0.0.1:1\n        name: a,b\n"),
            "line 5: models.m.replicas[0].name: the name `a,b` has other than",
        ),
        (
            with_replicas("      - url: http://127.0.0.1:1\n        name: ''\n"),
            "line 5: models.m.replicas[0].name: the name is empty",
        ),
        (
            with_replicas("      - url: http://127.0.0.1:1\n        name: ''\n        data_parallel_size: 2\n"),
            "line 5: models.m.replicas[0].name: the name is empty",
        ),
        (
            with_replicas(&format!(
                "      - url: http://127.0.0.1:1\n        name: {}\n        data_parallel_size: 11\n",
                "n".repeat(126)
            )),
            "line 5: models.m.replicas[0].name: the name `",
        ),
        (
            with_replicas(
                "      - {url: 'http://127.0.0.1:1', name: x/1}\n      - {url: 'http://127.0.0.1:2', name: x, data_parallel_size: 2}\n",
            ),
            "line 5: models.m.replicas[1].name: another replica is named `x/1` already",
        ),
        (with_model("    balancing: engine\n"), "line 3: models.m.balancing: it says who chooses without affinity"),
        (
            with_replicas("      - url: http://127.0.0.1:1\n        name: x x\n        data_parallel_size: 2\n"),
            "line 5: models.m.replicas[0].name: the name `x x` has other than",
        ),
        // Addresses.
        (with_top("listen: localhost:8080\n"), "line 1: listen: `localhost:8080` is not an IP address with a port"),
        (with_top("listen: 8080\n"), "line 1: listen: invalid type"),
        (with_top("listen: []\n"), "line 1: listen: the list is empty"),
        (with_top("listen:\n  - 127.0.0.1:1\n  - here\n"), "line 3: listen[1]: `here` is not"),
        (with_top("admin: no\n"), "line 1: admin: `no` is not"),
        (with_top("state_file: state\n"), "line 1: state_file: `state` is not an absolute path"),
        (with_top("state_file: /var/lib/\n"), "line 1: state_file: `/var/lib/` is not an absolute path"),
        (with_top("state_interval_s: 0\n"), "line 1: state_interval_s: 0 is not 1 to 3600"),
        (
            with_top("allow_anonymous: true\nlisten: [0.0.0.0:8080, 127.0.0.1:8080]\n"),
            "line 2: listen[1]: 127.0.0.1:8080 overlaps 0.0.0.0:8080 of listen[0]",
        ),
        (
            with_top("listen: 0.0.0.0:9180\nallow_anonymous: true\n"),
            "admin: 127.0.0.1:9180 overlaps 0.0.0.0:9180 of listen",
        ),
        // Who may reach what.
        (
            with_top("listen: [127.0.0.1:1, 10.0.0.1:2]\n"),
            "line 1: listen[1]: other machines reach 10.0.0.1:2, and whoever does could use the GPUs: give `keys_file",
        ),
        (with_top("allow_anonymous: false\nlisten: '[::]:1'\n"), "line 2: listen: other machines reach [::]:1"),
        (with_top("admin: 10.0.0.1:9180\n"), "line 1: admin: other machines reach 10.0.0.1:9180, and whoever does"),
        (
            with_top("keys_file: no.yaml\n"),
            "line 1: keys_file: /nonexistent/no.yaml: No such file or directory (os error 2); `kvpin keys add` makes it",
        ),
        (
            with_top("admin_token_file: /nonexistent/token\n"),
            "line 1: admin_token_file: /nonexistent/token: No such file or directory",
        ),
        (
            with_model("    upstream_key_file: key\n"),
            "line 3: models.m.upstream_key_file: /nonexistent/key: No such file or directory",
        ),
        (
            with_replicas("      - http://127.0.0.1:8080\n"),
            "line 4: models.m.replicas[0].url: 127.0.0.1:8080 is kvpin's own address (listen)",
        ),
        (
            with_replicas("      - http://localhost:9180\n"),
            "line 4: models.m.replicas[0].url: 127.0.0.1:9180 is kvpin's own address (admin)",
        ),
        (
            with_replicas("      - http://127.0.0.1:1\n      - {url: 'http://localhost:1', name: x}\n"),
            "line 5: models.m.replicas[1].url: 127.0.0.1:1 is given at models.m.replicas[0].url already; for its ranks use data_parallel_size",
        ),
        (
            "models:\n  a: {replicas: [http://127.0.0.1:1]}\n  b: {replicas: [http://127.0.0.1:1]}\n".to_owned(),
            "line 3: models.b.replicas[0].url: 127.0.0.1:1 is given at models.a.replicas[0].url already; to serve it under another name use aliases",
        ),
        (
            with_replicas("      - name: x\n        url: ftp://127.0.0.1:1\n"),
            "line 5: models.m.replicas[0].url: the scheme `ftp` is not supported",
        ),
        (
            with_replicas("      - http://127.0.0.1:1/v1\n"),
            "line 4: models.m.replicas[0].url: a path is not supported: give the server without `/v1`",
        ),
        (
            with_replicas("      - http://nowhere:1\n"),
            "line 4: models.m.replicas[0].url: the host `nowhere` can't be resolved: no such host",
        ),
    ];
    let mut wrong = Vec::new();
    for (text, expected) in cases {
        let refusal = refused(&text);
        if !refusal.starts_with(expected) || refusal.lines().count() != 1 {
            wrong.push(format!("expected {expected}\nbut got {refusal}\nfor\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn all_problems_are_reported_in_the_order_of_the_file() {
    let text = "\
listen: here
models:
  a:
    balancing: engine
    max_num_seqs: 0
    replicas: [ftp://127.0.0.1:1, http://127.0.0.1:2/v1]
  b:
    aliases: [a]
default_model: c
";
    let found = parse(text).expect_err("many problems");
    let lines: Vec<_> = found.problems().iter().map(|p| (p.line, &*p.path)).collect();
    let expected = [
        (Some(1), "listen"),
        (Some(4), "models.a.balancing"),
        (Some(5), "models.a.max_num_seqs"),
        (Some(6), "models.a.replicas[0].url"),
        (Some(6), "models.a.replicas[1].url"),
        (Some(7), "models.b.replicas"),
        (Some(8), "models.b.aliases[0]"),
        (Some(9), "default_model"),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn problems_past_the_sixty_fourth_are_counted() {
    let entries: String = (0..70).map(|i| format!("      - ftp://127.0.0.1:{}\n", 1000 + i)).collect();
    let found = parse(&with_replicas(&entries)).expect_err("seventy problems");
    assert_eq!(found.problems().len(), 65);
    assert!(found.to_string().ends_with("\nand 6 more problems"));
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("none.yaml");
    let err = Config::load(&missing).expect_err("no file").to_string();
    assert!(err.contains("none.yaml: No such file"), "{err}");

    let large = dir.path().join("large.yaml");
    std::fs::write(&large, "#".repeat((1 << 20) + 1)).expect("a file");
    let err = Config::load(&large).expect_err("too large").to_string();
    assert!(err.ends_with("large.yaml: it is larger than 1048576 bytes"), "{err}");
}

#[test]
fn the_automatic_threshold_is_a_quarter_and_at_least_one() {
    let mut model = valid(&with_model("")).models.remove(0);
    for (max_num_seqs, expected) in [(1, 1), (4, 1), (7, 1), (8, 2), (32, 8), (1024, 256)] {
        assert_eq!(model.spill_threshold(max_num_seqs), expected, "{max_num_seqs}");
    }
    model.spill_threshold = SpillThreshold::Fixed(5);
    assert_eq!(model.spill_threshold(32), 5);
}

#[test]
fn what_may_not_be_meant_is_warned_of() {
    let quiet = with_model("    max_num_seqs: 32\n");
    assert_eq!(valid(&quiet).warnings(), [""; 0]);

    let text = "\
listen: [127.0.0.1:8080, 0.0.0.0:8081]
allow_anonymous: true
models:
  m: {replicas: [{url: 'http://127.0.0.1:8000', data_parallel_size: 2}]}
";
    let warnings = valid(text).warnings();
    let starts = [
        "listen 0.0.0.0:8081: anyone",
        "listen 0.0.0.0:8081: keys and prompts pass unencrypted",
        "model m: /v1/responses turns can't be pinned",
        "model m: max_num_seqs is not configured: 32 is assumed",
    ];
    assert_eq!(warnings.len(), starts.len(), "{warnings:#?}");
    for (warning, start) in warnings.iter().zip(starts) {
        assert!(warning.starts_with(start), "{warning}");
    }
}

/// A directory with a keys file of `alice`, and files with a token and a key.
fn directory_with(keys: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in [("keys.yaml", keys), ("token", "0123456789abcdef012345\n"), ("key", "engine-key\n")] {
        let file = directory.path().join(name);
        std::fs::write(&file, text).expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    }
    directory
}

fn alice() -> String {
    format!("alice:\n  hash: {}\n  models: [m]\n", KeyHash::of(b"a").to_text())
}

const GUARDED: &str = "listen: 10.0.0.1:1\nkeys_file: keys.yaml\nadmin: 10.0.0.1:2\nadmin_token_file: token\nmodels:\n  m:\n    \
                       max_num_seqs: 8\n    upstream_key_file: key\n    replicas: [http://127.0.0.1:8000]\n";

fn load_in(directory: &tempfile::TempDir, text: &str) -> Result<Config, ConfigError> {
    let file = directory.path().join("kvpin.yaml");
    std::fs::write(&file, text).expect("a file");
    Config::load(&file)
}

#[test]
fn files_that_a_configuration_names_are_read_from_its_own_directory() {
    let directory = directory_with(&alice());
    let config = load_in(&directory, GUARDED).unwrap_or_else(|err| panic!("{err}"));
    let keys = config.keys.as_ref().expect("keys");
    assert_eq!((keys.file.clone(), &*keys.keys[0].name), (directory.path().join("keys.yaml"), "alice"));
    let secrets = [config.admin_token.as_ref(), config.models[0].upstream_key.as_ref()];
    let secrets = secrets.map(|secret| secret.map(|secret| secret.secret.expose().to_owned()));
    assert_eq!(secrets, [Some("0123456789abcdef012345".to_owned()), Some("engine-key".to_owned())]);
    let warnings = config.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with("listen 10.0.0.1:1: keys and prompts pass unencrypted"), "{warnings:?}");
    assert_eq!(warnings[1], "admin 10.0.0.1:2: the token and the pages pass unencrypted");
    let named = Config::keys_file(&directory.path().join("kvpin.yaml"));
    assert_eq!(named, Ok(Some(directory.path().join("keys.yaml"))));
}

#[test]
fn what_is_wrong_with_a_named_file_is_said_without_what_stands_in_it() {
    let guarded = |text: &str| GUARDED.to_owned() + text;
    for (file, text, config, expected) in [
        (
            "keys.yaml",
            "alice:\n  hash: kvp_secret\n",
            guarded(""),
            "line 2: keys_file: DIR/keys.yaml: line 2: alice.hash: this is no",
        ),
        ("keys.yaml", "alice: [\n", guarded(""), "line 2: keys_file: DIR/keys.yaml: line 2: did not find"),
        ("token", "kvp_secret\n", guarded(""), "line 4: admin_token_file: DIR/token: what is in it has 10 bytes"),
        ("token", "", guarded(""), "line 4: admin_token_file: DIR/token: there is nothing in it"),
        (
            "key",
            "kvp_secret kvp_secret",
            guarded(""),
            "line 8: models.m.upstream_key_file: DIR/key: there is more in it",
        ),
        ("key", "k", guarded("allow_anonymous: true\n"), "line 10: allow_anonymous: it lets everybody in"),
    ] {
        let directory = directory_with(&alice());
        std::fs::write(directory.path().join(file), text).expect("a file");
        let refusal = load_in(&directory, &config).expect_err(text).to_string();
        let refusal = refusal.replace(&*directory.path().to_string_lossy(), "DIR");
        assert!(
            refusal.starts_with(expected) && !refusal.contains("kvp_secret"),
            "expected {expected}\nbut got {refusal}"
        );
    }
}

#[test]
fn secrets_that_everybody_can_read_and_keys_that_open_nothing_are_warned_of() {
    let directory = directory_with(&alice().replace("[m]", "[m, gone]"));
    for (name, mode) in [("keys.yaml", 0o644), ("token", 0o602), ("key", 0o666)] {
        let file = directory.path().join(name);
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).expect("a mode");
    }
    let warnings = load_in(&directory, GUARDED).unwrap_or_else(|err| panic!("{err}")).warnings().join("\n");
    for part in [
        "keys.yaml: every user of this machine can read it",
        "token: every user of this machine can write to it",
        "key: every user of this machine can read and write to it",
        "key alice: it may use `gone`, and no model or alias has that name",
    ] {
        assert!(warnings.contains(part), "{part} in\n{warnings}");
    }
    let empty = load_in(&directory_with("# none yet\n"), GUARDED).unwrap_or_else(|err| panic!("{err}"));
    assert!(empty.warnings().iter().any(|warning| warning.ends_with("it has no key, so nobody can ask")));
}

#[test]
fn a_changed_secret_is_told_and_not_shown() {
    let directory = directory_with(&alice());
    let old = load_in(&directory, GUARDED).unwrap_or_else(|err| panic!("{err}"));
    for (name, text) in [("keys.yaml", "# none\n"), ("token", "fedcba9876543210fedcba\n"), ("key", "other-key\n")] {
        std::fs::write(directory.path().join(name), text).expect("a file");
    }
    let new = load_in(&directory, GUARDED).unwrap_or_else(|err| panic!("{err}"));
    assert_eq!(old.changes(&new), ["admin token changed", "key alice removed", "model m: upstream key changed"]);
    assert_eq!(old.restart_needed(&new), [""; 0]);
    let shown = format!("{old:?}");
    assert!(!["engine-key", "0123456789abcdef", "kvpin1-"].iter().any(|secret| shown.contains(secret)), "{shown}");
}

/// Pieces that make text which gets past the parser now and then.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "\n",
        "\n  ",
        "\n    ",
        "\n      - ",
        "- ",
        ": ",
        "models:",
        "m:",
        "replicas:",
        "url: ",
        "name: ",
        "aliases: ",
        "listen: ",
        "admin: ",
        "off",
        "limits:",
        "body_bytes_max: ",
        "32MiB",
        "KiB",
        "max_num_seqs: ",
        "spill_threshold: ",
        "auto",
        "data_parallel_size: ",
        "0",
        "7",
        "-1",
        "1e9",
        "99999999999999999999999",
        "[",
        "]",
        "{",
        "}",
        ",",
        "http://127.0.0.1:8000",
        "http://[::1]",
        "http://é:1",
        "127.0.0.1:8080",
        "&a ",
        "*a",
        "!t ",
        "<<: ",
        "~",
        "''",
        "\"\\0\"",
        "|",
        ">",
        "#",
        "---\n",
        "...\n",
        "é",
        "\u{feff}",
        "\t",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn arbitrary_text_is_read_or_refused(text in "\\PC{0,200}") {
        if let Err(err) = parse(&text) {
            prop_assert!(!err.to_string().is_empty());
        }
    }

    #[test]
    fn text_of_yaml_pieces_is_read_or_refused(text in pieces()) {
        if let Err(err) = parse(&text) {
            prop_assert!(!err.to_string().is_empty());
        }
    }

    #[test]
    fn a_damaged_file_is_read_or_refused(at in 0usize..3000, piece in pieces(), cut in 0usize..40) {
        let text = include_str!("../../conf/four-cards.yaml");
        prop_assert!(text.is_ascii());
        let start = at.min(text.len());
        let end = (start + cut).min(text.len());
        let damaged = format!("{}{piece}{}", &text[..start], &text[end..]);
        if let Err(err) = parse(&damaged) {
            let lines = damaged.lines().count() + 1;
            prop_assert!(err.problems().iter().all(|p| p.line.is_none_or(|line| (1..=lines).contains(&line))), "{}", err);
        }
    }
}
