//! `kvpin status`: what the page shows, as text or as JSON.

mod card;
mod fit;
mod gpus;
mod screen;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::admin::Status;

use super::admin_token::TokenArgs;
use super::drain::{Admin, AdminArgs};
use card::Ink;
use screen::Screen;

/// Of which kvpin, and how.
#[derive(clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    at: AdminArgs,
    #[command(flatten)]
    token: TokenArgs,
    /// Show it again every so many seconds until interrupted, every 2 if none are given.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = interval)]
    watch: Option<Duration>,
    /// Print the JSON of /api/v1/status as it comes; with --watch, a line each.
    #[arg(long)]
    json: bool,
}

/// How often it may be asked for: no oftener than a person could follow.
const INTERVAL_S: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

/// Where the text goes, and in which form.
struct Printer {
    json: bool,
    ink: Ink,
    is_terminal: bool,
}

/// Shows the status. Exit 0 shown, 1 failed, 64 wrong usage, 78 bad configuration.
pub fn run(args: &StatusArgs) -> ExitCode {
    let (url, config) = match args.at.url() {
        Ok(found) => found,
        Err(exit) => return exit,
    };
    let token = match args.token.token(config.as_ref()) {
        Ok(token) => token,
        Err(error) => return super::finish(Err(error)),
    };
    let admin = Admin { url, token };
    let printer = Printer::for_stdout(args.json);
    super::finish(super::block_on(async {
        let shown = match args.watch {
            None => printer.print(&admin.status_json().await?, End::OfAll),
            Some(interval) => watch(&admin, &printer, interval).await,
        };
        // Whoever has read enough, such as `head`, closes the pipe.
        shown.or_else(|error| if is_closed_pipe(&error) { Ok(()) } else { Err(error) })
    }))
}

/// Shows it again and again until interrupted. A kvpin that can't be asked at first is an error; one that can't be asked
/// later may be about to come back.
async fn watch(admin: &Admin, printer: &Printer, interval: Duration) -> anyhow::Result<()> {
    let mut interrupted = signal(SignalKind::interrupt()).context("no signals")?;
    let mut terminated = signal(SignalKind::terminate()).context("no signals")?;
    let mut status = Ok(admin.status_json().await?);
    let mut screen = match printer.is_terminal && !printer.json {
        true => Some(Screen::enter().context("the terminal takes nothing")?),
        false => None,
    };
    loop {
        match (&mut screen, status) {
            (Some(screen), status) => screen.draw(&printer.drawn(status, screen.rows())?)?,
            (None, Ok(status)) => printer.print(&status, End::OfOne)?,
            (None, Err(error)) => eprintln!("kvpin: {error:#}"),
        }
        tokio::select! {
            _ = interrupted.recv() => return Ok(()),
            _ = terminated.recv() => return Ok(()),
            () = tokio::time::sleep(interval) => {}
        }
        status = tokio::select! {
            _ = interrupted.recv() => return Ok(()),
            _ = terminated.recv() => return Ok(()),
            status = admin.status_json() => status,
        };
    }
}

/// What a status is followed by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nothing: it was the only one.
    OfAll,
    /// Another one.
    OfOne,
}

impl Printer {
    fn for_stdout(json: bool) -> Self {
        let is_terminal = io::stdout().is_terminal();
        // https://no-color.org: any value but an empty one.
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let ink = if is_terminal && !no_color && !is_dumb { Ink::Coloured } else { Ink::Plain };
        Printer { json, ink, is_terminal }
    }

    fn print(&self, json: &[u8], end: End) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            out.write_all(json)?;
            if end == End::OfOne || self.is_terminal {
                out.write_all(b"\n")?;
            }
        } else {
            out.write_all(card::cards(&read(json)?, self.ink).as_bytes())?;
            if end == End::OfOne {
                out.write_all(b"\n")?;
            }
        }
        Ok(out.flush()?)
    }

    /// What stands on a screen of so many rows.
    fn drawn(&self, status: anyhow::Result<Vec<u8>>, rows: usize) -> anyhow::Result<String> {
        match status {
            Ok(json) => Ok(fit::fit(&read(&json)?, self.ink, rows)),
            Err(error) => Ok(format!("{}\n", card::yellow(&format!("kvpin: {error:#}"), self.ink))),
        }
    }
}

/// The status that a JSON text is. What answers may be anything, so nothing that would steer a terminal is left in it.
fn read(json: &[u8]) -> anyhow::Result<Status> {
    const UNREADABLE: &str = "its status can't be read; is it another version of kvpin?";
    let mut value: Value = serde_json::from_slice(json).context(UNREADABLE)?;
    defuse(&mut value);
    serde_json::from_value(value).context(UNREADABLE)
}

fn defuse(value: &mut Value) {
    match value {
        Value::String(text) if text.contains(char::is_control) => *text = text.replace(char::is_control, "?"),
        Value::Array(items) => items.iter_mut().for_each(defuse),
        Value::Object(fields) => fields.values_mut().for_each(defuse),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| INTERVAL_S.contains(seconds));
    let seconds = seconds.ok_or_else(|| format!("it is not {} to {} seconds", INTERVAL_S.start(), INTERVAL_S.end()))?;
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_status_steers_the_terminal() {
        let json = r#"{"kvpin":{"version":"1\u001b[2J\n","uptime_s":1.0,"open_requests":0},"models":[]}"#;
        let text = card::cards(&read(json.as_bytes()).unwrap(), Ink::Plain);
        assert_eq!(text, "kvpin 1?[2J?, up 1 s, 0 open requests\n");
    }

    #[test]
    fn an_interval_is_a_number_of_seconds_that_a_person_can_follow() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "1e9", "x", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
