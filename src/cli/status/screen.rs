//! A terminal that one text after the other is drawn on, without flicker, and that is given back as it was.
//!
//! Lines are written over the old ones and cleared behind their end, never before, and the terminal is asked to show each
//! drawing at once. Control sequences are those of ECMA-48 and xterm; a terminal ignores those it doesn't know.

use std::io::{self, Write as _};

use terminal_size::{Height, terminal_size};

/// The other buffer, so that what stood on the terminal comes back; no cursor; and lines that are too long end at its edge.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const BEGIN: &str = "\x1b[?2026h\x1b[H";
/// Clears what is left below.
const END: &str = "\x1b[J\x1b[?2026l";
const CLEAR_LINE_END: &str = "\x1b[K";

/// What terminals have that don't say.
const ROWS_DEFAULT: usize = 24;

/// The terminal, until it is dropped.
pub struct Screen(());

impl Screen {
    pub fn enter() -> io::Result<Self> {
        write(ENTER)?;
        Ok(Screen(()))
    }

    /// How many lines there is room for.
    pub fn rows(&self) -> usize {
        terminal_size().map_or(ROWS_DEFAULT, |(_, Height(rows))| usize::from(rows))
    }

    pub fn draw(&mut self, text: &str) -> io::Result<()> {
        write(&drawing(text))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // One that is gone needs nothing back.
        write(LEAVE).ok();
    }
}

/// The last line has no end, which would move the whole screen up.
fn drawing(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| format!("{line}{CLEAR_LINE_END}")).collect();
    format!("{BEGIN}{}{END}", lines.join("\r\n"))
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_covers_the_one_before_without_clearing_first() {
        assert_eq!(drawing("a\nb\n"), "\x1b[?2026h\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J\x1b[?2026l");
    }
}
