//! Any bytes that a server may call its metrics: the parser doesn't panic, keeps no more than its bound, and what it says of
//! an engine is in range.

#![no_main]
#![allow(dead_code)]

#[path = "../../src/replica/series.rs"]
mod series;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|page: &[u8]| {
    let engines = series::parse(&String::from_utf8_lossy(page));
    assert!(engines.len() <= series::ENGINES_MAX);
    for engine in engines.values() {
        assert!((0.0..=1.0).contains(&engine.kv_use), "{engine:?}");
        assert!(engine.process_start_s.is_none_or(f64::is_finite), "{engine:?}");
        for engines in [0, 1, engines.len()] {
            engine.kv_capacity_tokens(engines);
        }
    }
});
