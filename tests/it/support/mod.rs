//! What the facts are tried with: the built kvpin, clients that count bytes, and replicas that remember what arrived.

pub mod authority;
pub mod call;
pub mod claude;
pub mod client;
pub mod edge;
pub mod front;
pub mod generations;
pub mod h2;
pub mod hand;
pub mod keys;
pub mod kvpin;
pub mod load;
pub mod recorder;
pub mod replicas;
pub mod reserved;
pub mod rogue;
pub mod scrape;
pub mod secure;
pub mod stage;
pub mod standin;
pub mod storyteller;
pub mod strict;

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// How long anything may take before a test fails. Generous: the machine may be busy, and a passing test never waits for it.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Whether the tests that take long are to run in their full size: with `KVPIN_IT_FULL=1`.
pub fn full() -> bool {
    std::env::var_os("KVPIN_IT_FULL").is_some_and(|value| value == "1")
}

/// The result of `future`, which must come before the deadline.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("{what}: not within {DEADLINE:?}"))
}

/// Waits until `look` finds something.
pub async fn until<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    until_within(DEADLINE, what, look).await
}

/// Waits until `look` finds something, and for no longer than `patience`.
pub async fn until_within<T>(patience: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {patience:?}");
        sleep(LOOK_EVERY).await;
    }
}
