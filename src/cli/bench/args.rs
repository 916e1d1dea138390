//! How `kvpin bench` is told what to do.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::admin_token::TokenArgs;
use crate::sim::agent::{AgentDialect, Burst, Pause, Shape, Span};

/// What to measure, and on what.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Where the model is served, such as http://127.0.0.1:8080: by kvpin, vLLM or anything else that speaks their API.
    #[arg(long, value_name = "URL", conflicts_with = "arms")]
    pub(super) url: Option<String>,
    /// kvpin's admin listener: affinity is switched on and off through it, and the two are compared.
    #[arg(long, value_name = "URL", requires = "url")]
    pub(super) admin: Option<String>,
    /// One of several servers to compare; give it once for each.
    #[arg(long = "arm", value_name = "NAME=URL")]
    pub(super) arms: Vec<String>,
    #[command(flatten)]
    pub(super) token: TokenArgs,
    /// An engine's own server: its metrics are read, and its cache emptied between the arms if it lets itself be. Once for each.
    /// Default: the replicas that kvpin's status names.
    #[arg(long = "engine", value_name = "URL")]
    pub(super) engines: Vec<String>,
    /// The model. Default: the first that is served.
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// The API that the agents speak.
    #[arg(long, value_enum, default_value_t = Api::Messages)]
    pub(super) api: Api,
    /// A header that names the conversation too, for balancers that want one of their own. Once for each.
    #[arg(long = "session-header", value_name = "NAME")]
    pub(super) session_headers: Vec<String>,
    /// A file with the API key.
    #[arg(long, value_name = "FILE")]
    pub(super) api_key_file: Option<PathBuf>,
    /// The ladder: sessions at the same time, rung by rung.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "4,8,16,24,32",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) sessions: Vec<u32>,
    /// How long each arm is measured on each rung, in seconds. Default: 180; for a trace, its length and a minute.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=2_678_400))]
    pub(super) seconds: Option<u64>,
    /// How long the agents of each measurement are at work before it begins, in seconds: what counts is then how it goes on, and
    /// not how it began.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=2_678_400))]
    pub(super) warmup: u64,
    /// How often the ladder is gone through; the arms change their order each time.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) rounds: u32,
    /// Chooses all sizes and all text.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) shape: ShapeArgs,
    /// Take the sessions of a trace, each at its time, in the place of a ladder.
    #[arg(long, value_name = "FILE", conflicts_with = "sessions")]
    pub(super) replay: Option<PathBuf>,
    /// Measure nothing: make a trace of kvpin's JSON access log and print it. It has sizes and times, and no text.
    #[arg(long, value_name = "ACCESS_LOG", conflicts_with_all = ["url", "arms", "replay"])]
    pub(super) record: Option<PathBuf>,
    /// Write what --json prints into this file too.
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,
    /// Write plots (SVG) into this directory.
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) plots: Option<PathBuf>,
    /// Print one JSON object, with every single measurement.
    #[arg(long)]
    pub(super) json: bool,
}

/// The sizes of sessions. Of what isn't given, the shape decides.
#[derive(Args, Debug)]
pub struct ShapeArgs {
    /// What the agents do.
    #[arg(long = "shape", value_enum, default_value_t = Preset::Agent)]
    preset: Preset,
    /// Tokens of the system prompt that all sessions of a measurement share.
    #[arg(long, value_name = "N")]
    system_tokens: Option<u32>,
    /// Tokens of a session's first message: a number, or a range such as 7200-7500.
    #[arg(long, value_name = "N[-N]")]
    first_tokens: Option<Span>,
    /// Tokens of each later message.
    #[arg(long, value_name = "N[-N]")]
    turn_tokens: Option<Span>,
    /// Turns in a session.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    turns: Option<u32>,
    /// The most tokens of a reply.
    #[arg(long, value_name = "N[-N]")]
    output_tokens: Option<Span>,
    /// The median pause between a reply and the next turn, in seconds. The pauses are heavy-tailed; 0: none.
    #[arg(long, value_name = "S")]
    think_median_s: Option<f64>,
    /// The pause that one in a hundred is longer than, in seconds.
    #[arg(long, value_name = "S")]
    think_p99_s: Option<f64>,
    /// Subagents in a burst. 0: none.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=64))]
    subagents: Option<u32>,
    /// A burst comes after every so many turns.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    subagents_every: Option<u32>,
}

/// Known ways to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Six turns from 11k tokens on, without a pause.
    Agent,
    /// The same with pauses: median 2 s, one in a hundred over 3 minutes.
    Thinking,
    /// The same, with four subagents after every second turn.
    Subagents,
    /// Sessions that reach 58k tokens.
    Context58k,
    /// Sessions of 43 turns that reach 142k tokens halfway.
    Context142k,
}

/// The API that agents speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// `/v1/messages`
    Messages,
    /// `/v1/chat/completions`
    Chat,
}

impl From<Api> for AgentDialect {
    fn from(api: Api) -> Self {
        match api {
            Api::Messages => AgentDialect::Messages,
            Api::Chat => AgentDialect::Chat,
        }
    }
}

/// The pauses of [`Preset::Thinking`], and what one of the two means without the other.
const THINK_MEDIAN_S: f64 = 2.0;
const THINK_P99_S: f64 = 180.0;
/// A pause longer than a month is a mistake.
const THINK_MOST_S: f64 = 30.0 * 86_400.0;

impl Preset {
    fn shape(self) -> Shape {
        let agent = Shape {
            system_tokens: 3_500,
            first_tokens: Span { least: 7_200, most: 7_500 },
            turn_tokens: Span::of(400),
            turns: 6,
            reply_tokens: Span::of(256),
            pause: Pause::None,
            burst: Burst { agents: 0, every: 2, first_tokens: Span { least: 1_500, most: 3_000 }, turns: 3 },
        };
        match self {
            Preset::Agent => agent,
            Preset::Thinking => Shape { pause: heavy(THINK_MEDIAN_S, THINK_P99_S), ..agent },
            Preset::Subagents => Shape { burst: Burst { agents: 4, ..agent.burst }, ..agent },
            Preset::Context58k => {
                Shape { system_tokens: 14_000, first_tokens: Span { least: 36_000, most: 40_000 }, turns: 10, ..agent }
            }
            Preset::Context142k => Shape {
                system_tokens: 20_000,
                first_tokens: Span { least: 95_000, most: 105_000 },
                turn_tokens: Span { least: 400, most: 1_200 },
                turns: 43,
                reply_tokens: Span { least: 200, most: 700 },
                ..agent
            },
        }
    }
}

fn heavy(median_s: f64, p99_s: f64) -> Pause {
    let [median, p99] = [median_s, p99_s].map(|seconds| Duration::from_secs_f64(seconds.clamp(0.0, THINK_MOST_S)));
    Pause::HeavyTailed { median, p99: p99.max(median) }
}

impl ShapeArgs {
    pub(super) fn shape(&self) -> Shape {
        let preset = self.preset.shape();
        let burst = preset.burst;
        Shape {
            system_tokens: self.system_tokens.unwrap_or(preset.system_tokens),
            first_tokens: self.first_tokens.unwrap_or(preset.first_tokens),
            turn_tokens: self.turn_tokens.unwrap_or(preset.turn_tokens),
            turns: self.turns.unwrap_or(preset.turns),
            reply_tokens: self.output_tokens.unwrap_or(preset.reply_tokens),
            pause: match (self.think_median_s, self.think_p99_s) {
                (None, None) => preset.pause,
                (Some(median), _) if median <= 0.0 => Pause::None,
                (median, p99) => heavy(median.unwrap_or(THINK_MEDIAN_S), p99.unwrap_or(THINK_P99_S)),
            },
            burst: Burst {
                agents: self.subagents.unwrap_or(burst.agents),
                every: self.subagents_every.unwrap_or(burst.every),
                ..burst
            },
        }
    }
}

/// `400`, or `7200-7500`.
impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| format!("`{text}` is no number of tokens"));
        let (least, most) = match text.split_once('-') {
            Some((least, most)) => (number(least)?, number(most)?),
            None => (number(text)?, number(text)?),
        };
        if least == 0 || least > most {
            return Err(format!("`{text}` is no range from 1 up"));
        }
        Ok(Span { least, most })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn parsed(line: &str) -> Result<BenchArgs, String> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn every_size_is_settable_and_the_shape_gives_the_rest() {
        let args =
            parsed("--url http://a --shape context58k --first-tokens 100-200 --turns 2 --think-median-s 1").unwrap();
        let shape = args.shape.shape();
        assert_eq!((shape.system_tokens, shape.turns), (14_000, 2));
        assert_eq!(shape.first_tokens, Span { least: 100, most: 200 });
        assert_eq!(shape.pause, heavy(1.0, 180.0));
        assert_eq!(args.sessions, [4, 8, 16, 24, 32]);
    }

    #[test]
    fn sizes_that_are_none_are_refused() {
        for line in ["--first-tokens 0", "--first-tokens 9-3", "--first-tokens x", "--sessions 0", "--seconds 0"] {
            assert!(parsed(&format!("--url http://a {line}")).is_err(), "{line}");
        }
        assert!(parsed("--url http://a --arm b=http://b").is_err());
    }
}
