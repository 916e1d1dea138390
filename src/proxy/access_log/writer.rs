//! The thread that writes lines, and the channel to it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use log::{info, warn};
use parking_lot::Mutex;
use prometheus::IntCounter;

use super::target::Target;

/// Lines that wait to be written: seconds of the busiest log, and a few megabytes.
const WAITING_MAX: usize = 8192;

/// The most that is written at once.
const WRITE_BYTES: usize = 64 << 10;

/// How long the end of the process waits for lines that are still to be written.
const FLUSH_WAIT: Duration = Duration::from_secs(2);

/// The way in.
pub struct AccessLog {
    channel: SyncSender<Message>,
    next: Arc<Mutex<Option<Target>>>,
    dropped: IntCounter,
}

enum Message {
    Line(String),
    /// There is another target.
    Look,
    /// To be answered when everything before it was written.
    Flush(SyncSender<()>),
}

struct Writer {
    channel: Receiver<Message>,
    /// What a reload has opened, until it is taken.
    next: Arc<Mutex<Option<Target>>>,
    target: Target,
    dropped: IntCounter,
    is_failing: bool,
}

impl AccessLog {
    /// Begins to write to `target`. What can't be written is counted in `dropped`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn begin(target: Target, dropped: IntCounter) -> std::io::Result<Self> {
        Self::of_capacity(WAITING_MAX, target, dropped)
    }

    fn of_capacity(lines: usize, target: Target, dropped: IntCounter) -> std::io::Result<Self> {
        let (channel, receiver) = sync_channel(lines);
        let next = Arc::<Mutex<Option<Target>>>::default();
        let writer =
            Writer { channel: receiver, next: Arc::clone(&next), target, dropped: dropped.clone(), is_failing: false };
        // It ends when nobody can write any more.
        thread::Builder::new().name("kvpin-access".to_owned()).spawn(move || writer.run())?;
        Ok(AccessLog { channel, next, dropped })
    }

    /// Leaves a line, with its end, to be written. Never waits.
    pub fn write(&self, line: String) {
        match self.channel.try_send(Message::Line(line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.dropped.inc(),
        }
    }

    /// Goes on in another file, or in a new one of the same name. The old one is closed.
    pub fn switch(&self, target: Target) {
        *self.next.lock() = Some(target);
        match self.channel.try_send(Message::Look) {
            // A thread that has so much to do looks by itself.
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// Waits until what was left here is written, or for as long as that may take.
    pub fn flush(&self) {
        let (reply, replied) = sync_channel(1);
        if self.channel.try_send(Message::Flush(reply)).is_ok() {
            // An error means that it takes too long.
            replied.recv_timeout(FLUSH_WAIT).ok();
        }
    }
}

impl Writer {
    fn run(mut self) {
        let mut lines = String::new();
        while let Ok(first) = self.channel.recv() {
            let mut waiting = Vec::new();
            self.take(first, &mut lines, &mut waiting);
            while lines.len() < WRITE_BYTES
                && let Ok(message) = self.channel.try_recv()
            {
                self.take(message, &mut lines, &mut waiting);
            }
            self.write(&lines);
            lines.clear();
            for reply in waiting {
                // Whoever waited may have given up.
                reply.send(()).ok();
            }
        }
    }

    fn take(&mut self, message: Message, lines: &mut String, waiting: &mut Vec<SyncSender<()>>) {
        match message {
            Message::Line(line) => lines.push_str(&line),
            Message::Look => {}
            Message::Flush(reply) => waiting.push(reply),
        }
    }

    fn write(&mut self, lines: &str) {
        if let Some(target) = self.next.lock().take() {
            self.target = target;
        }
        if lines.is_empty() {
            return;
        }
        let written = self.target.write(lines.as_bytes());
        let lost = lines[written.whole..].matches('\n').count();
        self.dropped.inc_by(lost as u64);
        match written.error {
            None if self.is_failing => info!("the access log is written again"),
            // Once, and not for every line.
            Some(error) if !self.is_failing => {
                warn!("the access log can't be written, and its lines are lost: {error}")
            }
            None | Some(_) => {}
        }
        self.is_failing = lost > 0;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use crate::config::AccessLogTo;

    use super::*;

    fn dropped() -> IntCounter {
        IntCounter::new("dropped", "Lines.").unwrap()
    }

    fn file(path: &Path) -> Target {
        Target::open(&AccessLogTo::File(path.to_owned())).unwrap()
    }

    #[test]
    fn lines_of_many_threads_are_whole_and_none_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let log = AccessLog::of_capacity(100_000, file(&path), dropped()).unwrap();
        thread::scope(|scope| {
            for letter in ["a", "b", "c", "d"] {
                let log = &log;
                scope.spawn(move || (0..500).for_each(|_| log.write(format!("{}\n", letter.repeat(500)))));
            }
        });
        log.flush();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2000);
        assert!(text.lines().all(|line| line.len() == 500 && line.chars().all(|c| line.starts_with(c))));
        assert_eq!(log.dropped.get(), 0);
    }

    #[test]
    fn what_is_written_after_a_switch_is_in_the_new_file() {
        let directory = tempfile::tempdir().unwrap();
        let (old, new) = (directory.path().join("log.1"), directory.path().join("log"));
        let log = AccessLog::begin(file(&old), dropped()).unwrap();
        log.write("before\n".to_owned());
        log.flush();
        log.switch(file(&new));
        log.write("after\n".to_owned());
        log.flush();
        assert_eq!(
            (fs::read_to_string(&old).unwrap(), fs::read_to_string(&new).unwrap()),
            ("before\n".into(), "after\n".into())
        );
    }

    #[test]
    fn a_full_disk_costs_lines_and_no_time_and_is_over_when_there_is_room() {
        let directory = tempfile::tempdir().unwrap();
        let log = AccessLog::begin(file(Path::new("/dev/full")), dropped()).unwrap();
        (0..10).for_each(|_| log.write("lost\n".to_owned()));
        log.flush();
        assert_eq!(log.dropped.get(), 10);
        log.switch(file(&directory.path().join("log")));
        log.write("kept\n".to_owned());
        log.flush();
        assert_eq!(fs::read_to_string(directory.path().join("log")).unwrap(), "kept\n");
        assert_eq!(log.dropped.get(), 10);
    }

    #[test]
    fn a_writer_that_hangs_keeps_nobody_waiting() {
        // Nothing takes lines out of this channel.
        let (channel, _receiver) = sync_channel(2);
        let log = AccessLog { channel, next: Arc::default(), dropped: dropped() };
        (0..5).for_each(|_| log.write("line\n".to_owned()));
        log.flush();
        assert_eq!(log.dropped.get(), 3);
    }
}
