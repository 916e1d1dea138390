//! Ways in which a server can be made to fail, each as a real vLLM was seen to.

/// What is wrong with a server. It applies to requests that arrive from then on, unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Failure {
    /// Nothing.
    #[default]
    None,
    /// Its queue is full: 503 to a generation, streamed or not.
    Busy,
    /// Its queue filled up just after the check: a stream's 503 comes inside its 200.
    BusyInStream,
    /// It was told to end and finishes what runs: 500 to a generation, health still good.
    Draining,
    /// Its engine died: 500 to a generation, an error inside every running stream, health 503.
    EngineDead,
    /// Its engine makes no step: requests hang, health is good, the metrics stand still.
    Frozen,
    /// A reply is cut off without a proper end after this many tokens; with 0 before anything of a stream's body, and for an
    /// answer that isn't streamed before its head.
    CutAfter(u32),
}
