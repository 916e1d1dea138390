//! `kvpin keys`: make API keys, list and remove them. A key is shown once, when it is made; the file has its hash.

mod file;

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Value, json};

use crate::config::{Config, KeyConfig, KeyHash, KeysText, Secret, one_word};
use crate::keys::{KEY_BYTES_MAX, KEY_RANDOM_BYTES, is_mistyped, made_of};

use super::EXIT_CONFIG;
use file::KeysFile;

/// 16 random bytes in base64 have 22 characters. A shorter key could be found from its hash by trying.
const OWN_KEY_BYTES_MIN: usize = 22;

/// What to do with which keys.
#[derive(clap::Args)]
pub struct KeysArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a key and print it, once. The file, which is made if it isn't there, gets its hash.
    Add(AddArgs),
    /// Make another key for a name and print it, once. The old one holds beside it until --end.
    Rotate(RotateArgs),
    /// Say which keys there are, and what they are good for.
    List(ListArgs),
    /// Take a key out.
    Remove(RemoveArgs),
}

#[derive(clap::Args)]
struct AddArgs {
    /// Stands for the key in the log and in the metrics: ASCII letters, digits and `._@-`.
    name: String,
    /// The models that it may be used for, by the names and aliases that requests may write. Default: all.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    models: Option<Vec<String>>,
    /// It may name the replica of a request.
    #[arg(long)]
    may_pin: bool,
    /// Requests that it may have in flight at the same time. Default: no limit.
    #[arg(long, value_name = "N")]
    in_flight_max: Option<u32>,
    /// Requests that it may send within any minute. Default: no limit.
    #[arg(long, value_name = "N")]
    requests_per_minute_max: Option<u32>,
    /// Add a key that exists, read from stdin, instead of a new one.
    #[arg(long)]
    key_from_stdin: bool,
    #[command(flatten)]
    at: FileArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct RotateArgs {
    name: String,
    /// Let the newest key alone hold from now on.
    #[arg(long)]
    end: bool,
    /// Add a key that exists, read from stdin, instead of a new one.
    #[arg(long, conflicts_with = "end")]
    key_from_stdin: bool,
    #[command(flatten)]
    at: FileArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ListArgs {
    #[command(flatten)]
    at: FileArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct RemoveArgs {
    name: String,
    #[command(flatten)]
    at: FileArgs,
}

/// Where the keys file is.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct FileArgs {
    /// The configuration, which says where the keys file is.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The keys file itself.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Exit 0 done, 1 failed, 78 for a configuration or a keys file that can't be read.
pub fn run(args: &KeysArgs) -> ExitCode {
    let at = match &args.command {
        Command::Add(args) => &args.at,
        Command::Rotate(args) => &args.at,
        Command::List(args) => &args.at,
        Command::Remove(args) => &args.at,
    };
    let path = match at.path() {
        Ok(path) => path,
        Err(exit) => return exit,
    };
    super::finish(match &args.command {
        Command::Add(args) => add(args, &path),
        Command::Rotate(args) => rotate(args, &path),
        Command::List(args) => list(args, &path),
        Command::Remove(args) => remove(args, &path),
    })
}

impl FileArgs {
    fn path(&self) -> Result<PathBuf, ExitCode> {
        let Some(config) = &self.config else { return self.file.clone().ok_or(ExitCode::FAILURE) };
        match Config::keys_file(config) {
            Ok(Some(path)) => Ok(path),
            Ok(None) => {
                eprintln!("kvpin: {}: it names no keys file; add `keys_file: keys.yaml`", config.display());
                Err(ExitCode::from(EXIT_CONFIG))
            }
            Err(error) => {
                eprintln!("{}:\n{error}", config.display());
                Err(ExitCode::from(EXIT_CONFIG))
            }
        }
    }
}

fn add(args: &AddArgs, path: &Path) -> anyhow::Result<()> {
    let file = KeysFile::open(path)?;
    let keys = file.read_or_new()?;
    let key = Key::of(args.key_from_stdin)?;
    let entry = KeyConfig {
        models: args.models.clone(),
        may_pin: args.may_pin,
        in_flight_max: args.in_flight_max,
        requests_per_minute_max: args.requests_per_minute_max,
        ..KeyConfig::new(&args.name, key.hash())
    };
    file.write(&keys.with(entry)?)?;
    key.show(&args.name, &file, args.json)
}

fn rotate(args: &RotateArgs, path: &Path) -> anyhow::Result<()> {
    let file = KeysFile::open(path)?;
    let keys = file.read()?;
    if args.end {
        file.write(&keys.end_rotation(&args.name)?)?;
        return done(&format!("the newest key of `{}` alone holds", args.name), &file);
    }
    let key = Key::of(args.key_from_stdin)?;
    file.write(&keys.begin_rotation(&args.name, key.hash())?)?;
    key.show(&args.name, &file, args.json)
}

fn remove(args: &RemoveArgs, path: &Path) -> anyhow::Result<()> {
    let file = KeysFile::open(path)?;
    file.write(&file.read()?.without(&args.name)?)?;
    done(&format!("removed `{}`", args.name), &file)
}

fn list(args: &ListArgs, path: &Path) -> anyhow::Result<()> {
    let keys = KeysFile::open(path)?.read()?;
    let text = match args.json {
        true => format!("{}\n", json!({ "keys": keys.keys().iter().map(in_json).collect::<Vec<_>>() })),
        false => table(&keys),
    };
    print(&text)
}

/// A key that was made or given.
enum Key {
    Made(Secret),
    Given(Secret),
}

impl Key {
    fn of(from_stdin: bool) -> anyhow::Result<Self> {
        if from_stdin {
            return given().map(Key::Given);
        }
        let mut random = [0; KEY_RANDOM_BYTES];
        getrandom::fill(&mut random).context("no entropy for a key")?;
        Ok(Key::Made(made_of(&random)))
    }

    fn hash(&self) -> KeyHash {
        let (Key::Made(key) | Key::Given(key)) = self;
        KeyHash::of(key.expose().as_bytes())
    }

    /// Prints a key that was made. One that was given is known already.
    fn show(&self, name: &str, file: &KeysFile, json: bool) -> anyhow::Result<()> {
        let made = match self {
            Key::Made(key) => Some(key.expose()),
            Key::Given(_) => None,
        };
        let shown = match (json, made) {
            (true, made) => print(&format!("{}\n", json!({ "name": name, "key": made, "file": file.path() }))),
            (false, Some(key)) => print(&format!("{key}\n")),
            (false, None) => Ok(()),
        };
        shown.with_context(|| {
            format!("`{name}` has its key in the file, but the key can't be shown; remove it again")
        })?;
        done(&format!("`{name}` has a key{}", if made.is_some() { ", shown this once" } else { "" }), file)
    }
}

fn given() -> anyhow::Result<Secret> {
    let mut text = String::new();
    // With room for a line end, and for one byte too many.
    let bytes_max = KEY_BYTES_MAX as u64 + 3;
    io::stdin().lock().take(bytes_max).read_to_string(&mut text).context("stdin can't be read as text")?;
    let key = one_word(&text, OWN_KEY_BYTES_MIN).map_err(|reason| anyhow!("the key on stdin: {reason}"))?;
    if key.expose().len() > KEY_BYTES_MAX {
        bail!("the key on stdin has more than {KEY_BYTES_MAX} bytes");
    }
    if is_mistyped(key.expose()) {
        bail!(
            "the key on stdin begins as a key of kvpin's does, but its check digits are wrong: it is not complete or mistyped"
        );
    }
    Ok(key)
}

/// On stderr, so that stdout holds the key or nothing.
fn done(what: &str, file: &KeysFile) -> anyhow::Result<()> {
    eprintln!("kvpin: {}: {what}. A kvpin that serves by it takes that over on SIGHUP.", file.path().display());
    Ok(())
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush().context("stdout can't be written")
}

fn in_json(key: &KeyConfig) -> Value {
    let KeyConfig { name, hashes, models, may_pin, in_flight_max, requests_per_minute_max } = key;
    json!({
        "name": name, "keys": hashes.len(), "models": models, "may_pin": may_pin,
        "in_flight_max": in_flight_max, "requests_per_minute_max": requests_per_minute_max,
    })
}

fn table(keys: &KeysText) -> String {
    let or_dash = |max: Option<u32>| max.map_or("-".to_owned(), |max| max.to_string());
    let row = |key: &KeyConfig| {
        let models = key.models.as_ref().map_or("all".to_owned(), |models| models.join(","));
        let pin = if key.may_pin { "yes" } else { "no" }.to_owned();
        let [in_flight, per_minute] = [key.in_flight_max, key.requests_per_minute_max].map(or_dash);
        let name = if key.hashes.len() > 1 { format!("{} (being replaced)", key.name) } else { key.name.clone() };
        [name, pin, in_flight, per_minute, models]
    };
    let head = ["NAME", "MAY PIN", "IN FLIGHT", "PER MINUTE", "MODELS"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(keys.keys().iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths = [0, 1, 2, 3].map(width);
    rows.iter().fold(String::new(), |mut text, row| {
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string doesn't fail.
            write!(text, "{cell:width$}  ").ok();
        }
        text + &row[4] + "\n"
    })
}
