//! JSON as tests generate it: written in any manner, and cut anywhere.

/// A JSON value with the order and the repetitions of its keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Text(String),
    Object(Vec<(String, Node)>),
    Array(Vec<Node>),
    /// A number or a literal, as it is written.
    Scalar(&'static str),
}

impl Node {
    /// Writes the value with white space and escapes as `style` has them.
    pub(crate) fn write(&self, out: &mut String, style: &mut Style) {
        style.space(out);
        match self {
            Node::Text(text) => style.text(out, text),
            Node::Scalar(scalar) => out.push_str(scalar),
            Node::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    item.write(out, style);
                }
                style.space(out);
                out.push(']');
            }
            Node::Object(entries) => {
                out.push('{');
                for (at, (key, node)) in entries.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    style.space(out);
                    style.text(out, key);
                    style.space(out);
                    out.push(':');
                    node.write(out, style);
                }
                style.space(out);
                out.push('}');
            }
        }
        style.space(out);
    }
}

/// Choices of how to write a document, used up one after the other and then over again.
#[derive(Debug)]
pub(crate) struct Style {
    choices: Vec<u8>,
    at: usize,
}

impl Style {
    pub(crate) fn new(choices: Vec<u8>) -> Self {
        Self { choices, at: 0 }
    }

    pub(crate) fn next(&mut self) -> u8 {
        self.at += 1;
        self.choices[self.at % self.choices.len()]
    }

    fn space(&mut self, out: &mut String) {
        out.push_str(["", "", "", " ", "\n  ", "\t\r\n"][usize::from(self.next()) % 6]);
    }

    fn text(&mut self, out: &mut String, text: &str) {
        out.push('"');
        for character in text.chars() {
            match (character, self.next() % 4) {
                ('"' | '\\', 0 | 1) => out.extend(['\\', character]),
                ('\n', 0 | 1) => out.push_str("\\n"),
                ('/', 1) => out.push_str("\\/"),
                (' '..'"' | '#'..'\\' | ']'.., 0..=2) => out.push(character),
                (_, choice) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let digits = format!("{unit:04x}");
                        let digits = if choice == 3 { digits.to_uppercase() } else { digits };
                        out.push_str(&format!("\\u{digits}"));
                    }
                }
            }
        }
        out.push('"');
    }
}

/// Feeds the chunks that the cuts make of a body.
pub(crate) fn feed_in_chunks(body: &[u8], cuts: &[usize], mut feed: impl FnMut(&[u8])) {
    let mut rest = body;
    for cut in cuts.iter().cycle().take(body.len()) {
        let (chunk, after) = rest.split_at((*cut).min(rest.len()));
        feed(chunk);
        rest = after;
    }
    feed(rest);
}
