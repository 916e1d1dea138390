//! A state of any bytes, and a state whose frames hold any bytes: reading it comes to an end, and what it says leaves a
//! balancer whose parts agree.

#![no_main]
// The modules are the crate's own, and more is in them than is used here.
#![allow(dead_code, unused_imports, unexpected_cfgs)]

#[path = "../../src/balancer/mod.rs"]
mod balancer;
#[path = "../../src/state/codec.rs"]
mod codec;
#[path = "../../src/conversation/mod.rs"]
mod conversation;
#[path = "../../src/json/mod.rs"]
mod json;

use std::net::SocketAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;

use balancer::{Admission, Balancer, Bounds, HealthPolicy, Mode, Policy, ReplicaSpec, SpillThreshold, Turn};
use codec::{Frame, Head, Reader, Writer, write_frame};
use conversation::ConversationKey;

const NOW: Duration = Duration::from_secs(1 << 30);

fuzz_target!(|bytes: &[u8]| {
    restore(bytes);
    // Each line is the payload of a frame whose checksum is right, so that what is behind the checksum is reached.
    let head = Head { saved_at_ms: 0, key_secret: [0; 16], kvpin: String::new() };
    let mut state = Vec::new();
    if Writer::begin(&mut state, head).is_ok() {
        for payload in bytes.split(|byte| *byte == b'\n') {
            if write_frame(&mut state, payload).is_err() {
                return;
            }
        }
        restore(&state);
    }
});

fn restore(bytes: &[u8]) {
    let Ok((mut reader, _)) = Reader::begin(bytes) else { return };
    let mut balancer = Balancer::new(policy(), (0..3).map(spec).collect(), NOW);
    let mut restore = None;
    while let Ok(Some(frame)) = reader.frame() {
        match frame {
            Frame::Model { replicas, .. } => {
                restore = Some(balancer.begin_restore(&replicas, Duration::from_secs(1), NOW));
            }
            Frame::Records(records) => {
                if let Some(restore) = &restore {
                    balancer.restore(restore, &records, NOW);
                    balancer.check_invariants();
                }
            }
            Frame::Head(_) | Frame::End { .. } => {}
        }
    }
    assert!(balancer.snapshot(NOW).conversations <= 16);
    if let Ok(mut ticket) = balancer.arrive(&Turn::of(Some(ConversationKey(0))), NOW) {
        balancer.served(&mut ticket, NOW);
        balancer.check_invariants();
        balancer.finish(ticket, balancer::Outcome::Completed, NOW);
        balancer.check_invariants();
    }
}

fn policy() -> Policy {
    Policy {
        mode: Mode::Affinity,
        spill_threshold: SpillThreshold::Auto,
        max_num_seqs: None,
        admission: Admission::OFF,
        bounds: Bounds { entries_max: 16, idle_max: Duration::from_secs(3600) },
        health: HealthPolicy::default(),
    }
}

fn spec(number: u16) -> ReplicaSpec {
    let address = SocketAddr::from(([127, 0, 0, 1], 8000 + number));
    ReplicaSpec {
        name: address.to_string(),
        address,
        authority: address.to_string(),
        rank: None,
        drain: false,
        is_tls: false,
    }
}
