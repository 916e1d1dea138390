//! What the old process still learns, and how the new one gets to know it.
//!
//! One thread speaks, another one listens. A turn that is served asks for a lesson and waits for the word that it is known;
//! all that ask while one is given are in the next one.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use tokio::sync::{mpsc as async_mpsc, oneshot};
use tokio::time::timeout;

use crate::dispatch::Model;
use crate::proxy::{Departure, Teacher};
use crate::state::SLICE_MAX;

use super::message::{Channel, Message};

/// How long an answer waits for its lesson. It takes less than a millisecond where the new process isn't starved.
const LESSON_MAX: Duration = Duration::from_millis(250);

/// The same for the first lesson, which may have much in it, and for the last.
const LONG_LESSON_MAX: Duration = Duration::from_secs(10);

/// A model, and from when on what is learned of it is new to the other process.
pub struct Learning {
    pub model: Arc<Model>,
    pub since: Duration,
}

/// What is heard from the new process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It is about to end in order, or to be replaced itself, and this process is to let go of the sockets.
    LetGo,
    /// It has ended.
    Gone,
}

/// The way from this process, which still serves turns, to the one that serves the next ones.
pub struct School {
    to_say: mpsc::Sender<Say>,
    heard: async_mpsc::UnboundedReceiver<Heard>,
    departure: Arc<Departure>,
}

/// What the new process is to be told.
enum Say {
    /// What was learned. The sender is told when it is known.
    Lesson(oneshot::Sender<()>),
    Go,
    Reload,
    /// The sender is told when it was said.
    Done(oneshot::Sender<()>),
}

/// Who waits for which lesson to be known, in their order.
type Waiting = Arc<Mutex<VecDeque<(u64, Vec<oneshot::Sender<()>>)>>>;

impl School {
    /// From here on the first byte of every answer waits for its lesson.
    pub fn begin(channel: Channel, models: Vec<Learning>, departure: Arc<Departure>) -> io::Result<School> {
        let (to_say, said) = mpsc::channel();
        let (hears, heard) = async_mpsc::unbounded_channel();
        let waiting = Waiting::default();
        let listening = channel.try_clone()?;
        let waiting_here = Arc::clone(&waiting);
        thread::Builder::new()
            .name("kvpin-speak".into())
            .spawn(move || speak(channel, models, &said, &waiting_here))?;
        thread::Builder::new().name("kvpin-listen".into()).spawn(move || listen(listening, &waiting, &hears))?;
        let lessons = to_say.clone();
        departure.set_teacher(Some(Teacher(Box::new(move || {
            let lesson = ask(&lessons);
            Box::pin(async move {
                // What is not known in time, or to nobody, costs a reading of a history at worst.
                if let Some(known) = lesson {
                    timeout(LESSON_MAX, known).await.ok();
                }
            })
        }))));
        Ok(School { to_say, heard, departure })
    }

    /// Lets the new process serve, once it knows everything that was learned until now.
    pub async fn go(&self) -> anyhow::Result<()> {
        self.lesson().await?;
        if self.to_say.send(Say::Go).is_err() {
            bail!("the new process has ended");
        }
        Ok(())
    }

    pub fn tell_to_reload(&self) {
        // An error means that it is gone, which is heard too.
        self.to_say.send(Say::Reload).ok();
    }

    /// Tells the last things, and that they are the last.
    pub async fn end(&self) {
        let (said, on_said) = oneshot::channel();
        if self.lesson().await.is_ok() && self.to_say.send(Say::Done(said)).is_ok() {
            // What doesn't go out in time is no loss: the lesson was the last.
            timeout(LESSON_MAX, on_said).await.ok();
        }
    }

    pub async fn heard(&mut self) -> Heard {
        self.heard.recv().await.unwrap_or(Heard::Gone)
    }

    async fn lesson(&self) -> anyhow::Result<()> {
        let known = ask(&self.to_say).context("the new process has ended")?;
        let known = timeout(LONG_LESSON_MAX, known).await.context("the new process doesn't answer")?;
        known.context("the new process has ended")
    }
}

impl Drop for School {
    fn drop(&mut self) {
        self.departure.set_teacher(None);
    }
}

/// Asks for a lesson.
fn ask(to_say: &mpsc::Sender<Say>) -> Option<oneshot::Receiver<()>> {
    let (known, on_known) = oneshot::channel();
    to_say.send(Say::Lesson(known)).is_ok().then_some(on_known)
}

/// Says what there is to say until nobody asks any more, or nobody listens.
fn speak(mut channel: Channel, mut models: Vec<Learning>, asked: &mpsc::Receiver<Say>, waiting: &Waiting) {
    let mut number = 0;
    while let Ok(first) = asked.recv() {
        let mut lesson = Vec::new();
        let (mut others, mut last) = (Vec::new(), None);
        for say in std::iter::once(first).chain(asked.try_iter()) {
            match say {
                Say::Lesson(known) => lesson.push(known),
                Say::Go => others.push(Message::Go),
                Say::Reload => others.push(Message::Reload),
                Say::Done(said) => {
                    others.push(Message::Done);
                    last = Some(said);
                }
            }
        }
        let mut said = Ok(());
        if !lesson.is_empty() {
            number += 1;
            waiting.lock().push_back((number, lesson));
            said = say_learned(&mut channel, &mut models).and_then(|()| channel.send(&Message::Lesson(number)));
        }
        let said = others.iter().fold(said, |said, message| said.and_then(|()| channel.send(message)));
        if said.is_err() {
            // That the other process is gone is heard too.
            waiting.lock().clear();
            return;
        }
        // Nobody may wait for it any more.
        last.map(|said| said.send(()));
    }
}

fn say_learned(channel: &mut Channel, models: &mut [Learning]) -> io::Result<()> {
    for Learning { model, since } in models {
        let (learned, now) =
            model.dispatcher.with(|balancer, now| (balancer.export_since(*since, SLICE_MAX, now), now));
        *since = now;
        for records in learned.into_iter().filter(|records| !records.is_empty()) {
            channel.send(&Message::Learned { model: model.name.clone(), records })?;
        }
    }
    Ok(())
}

/// Listens to the new process until it ends.
fn listen(mut channel: Channel, waiting: &Waiting, hears: &async_mpsc::UnboundedSender<Heard>) {
    while let Ok(message) = channel.receive() {
        match message {
            Message::Known(number) => {
                let mut waiting = waiting.lock();
                while waiting.front().is_some_and(|(lesson, _)| *lesson <= number) {
                    for known in waiting.pop_front().into_iter().flat_map(|(_, asked)| asked) {
                        // An error means that it was waited for long enough.
                        known.send(()).ok();
                    }
                }
            }
            Message::LetGo => {
                // An error means that this process is about to end.
                hears.send(Heard::LetGo).ok();
            }
            Message::Hello { .. }
            | Message::Welcome { .. }
            | Message::Prepared { .. }
            | Message::Ready
            | Message::Go
            | Message::Learned { .. }
            | Message::Lesson(_)
            | Message::Reload
            | Message::Done => {}
        }
    }
    waiting.lock().clear();
    hears.send(Heard::Gone).ok();
}
