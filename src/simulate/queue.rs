//! What happens next: events by time, those of one moment in the order in which they were expected.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A queue that never depends on anything but what was put into it.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    pushed: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Duration,
    number: u64,
    event: E,
}

impl<E> Queue<E> {
    pub fn new() -> Self {
        Queue { heap: BinaryHeap::new(), pushed: 0 }
    }

    pub fn push(&mut self, at: Duration, event: E) {
        self.pushed += 1;
        self.heap.push(Reverse(Entry { at, number: self.pushed, event }));
    }

    pub fn pop(&mut self) -> Option<(Duration, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

impl<E> Entry<E> {
    fn key(&self) -> (Duration, u64) {
        (self.at, self.number)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_moment_come_in_the_order_in_which_they_were_expected() {
        let mut queue = Queue::new();
        for (at, event) in [(2, 'c'), (1, 'a'), (2, 'd'), (1, 'b')] {
            queue.push(Duration::from_secs(at), event);
        }
        let order: Vec<char> = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, ['a', 'b', 'c', 'd']);
    }
}
