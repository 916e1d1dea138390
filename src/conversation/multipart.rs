//! Finds the field `model` in a `multipart/form-data` body (audio transcriptions) that arrives in
//! chunks.
//!
//! A form carries its file and its fields in any order, so the file's bytes are passed over as they
//! come. The delimiter begins with the one carriage return that it contains: after a mismatch no
//! shorter match can be under way, which makes one counter enough to find it across chunks. Held:
//! the delimiter, one header line, one value, all bounded.

use memchr::memchr;

use super::fields::{Fields, Model, Progress};
use super::literal::Fault;
use super::parameter::{Ambiguous, is_plain, parameter};
use super::path::Target;

/// Longest boundary, from RFC 2046, 5.1.1.
const LONGEST_BOUNDARY: usize = 70;

/// Bytes of header lines that a part may have. Three lines of about 100 bytes are the rule.
const LONGEST_HEAD: usize = 8192;

/// Longest value kept, in bytes; as for a JSON body.
const LONGEST_VALUE: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A part's bytes, with so many bytes of the delimiter matched.
    Content(usize),
    /// After the delimiter: a line end makes it the head of a part, two dashes the end of the form,
    /// anything else content.
    Delimiter,
    LineEnd,
    Dash,
    Head,
    Closed,
    Broken,
}

/// What a content disposition announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Other,
    /// Its content is the model's name.
    Model,
    /// A file in the place of the model's name, which the engine refuses.
    ModelFile,
}

/// The search through one form.
#[derive(Clone, Debug)]
pub struct FormScanner {
    delimiter: Box<[u8]>,
    state: State,
    /// Bytes of the form before the ones under way.
    at: usize,
    /// Where the last head ended, and where the last bytes began that may be the delimiter: the bounds of a part.
    content_at: usize,
    delimiter_at: usize,
    /// Header bytes of the part so far.
    head_bytes: usize,
    /// The header line so far.
    line: Vec<u8>,
    disposition_seen: bool,
    /// Whether every header so far has one reading only.
    is_plain: bool,
    /// The content of the part, where it is the model's name.
    value: Option<Vec<u8>>,
    fields: Fields,
}

impl FormScanner {
    /// `None` where the content type is not a form's or has no usable boundary: nothing can be
    /// found then.
    pub fn new(content_type: &str) -> Option<Self> {
        let media_type = content_type.split(';').next().unwrap_or(content_type).trim();
        if !media_type.eq_ignore_ascii_case("multipart/form-data") {
            return None;
        }
        let boundary = parameter(content_type, "boundary").ok()??;
        // A line break in it would undo what the search for the delimiter rests on.
        if boundary.is_empty() || boundary.len() > LONGEST_BOUNDARY || boundary.contains(char::is_control) {
            return None;
        }
        Some(Self {
            delimiter: format!("\r\n--{boundary}").into_bytes().into(),
            // The first delimiter may lack the line break that the others begin with.
            state: State::Content(b"\r\n".len()),
            at: 0,
            content_at: 0,
            delimiter_at: 0,
            head_bytes: 0,
            line: Vec::new(),
            disposition_seen: false,
            is_plain: is_plain(content_type),
            value: None,
            fields: Fields::default(),
        })
    }

    /// Takes the next bytes of the body. May be called on after any answer.
    pub fn feed(&mut self, chunk: &[u8]) -> Progress {
        let mut rest = chunk;
        while !rest.is_empty() && !matches!(self.state, State::Closed | State::Broken) {
            let used = self.step(rest);
            self.at += used;
            rest = &rest[used..];
        }
        self.progress()
    }

    pub fn progress(&self) -> Progress {
        if self.state == State::Closed {
            Progress::Closed
        } else if self.state == State::Broken {
            Progress::Unreadable
        } else if self.fields.model != Model::Absent {
            Progress::Answered
        } else {
            Progress::More
        }
    }

    /// Whether the headers leave no parser room to find other parts, or other names of parts, than were found here. Where
    /// something depends on the model, a form that isn't plain can't be relied on.
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// What was found so far. A form names a model only.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Consumes some bytes, or none where only the state changed.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            State::Content(0) => self.pass_content(bytes),
            State::Content(matched) => self.pass_delimiter(matched, bytes[0]),
            State::Delimiter => self.pass_delimiter_end(bytes[0]),
            State::LineEnd => self.pass_second(bytes[0], b"\r\n"),
            State::Dash => self.pass_second(bytes[0], b"--"),
            State::Head => self.read_head(bytes),
            State::Closed | State::Broken => bytes.len(),
        }
    }

    fn pass_content(&mut self, bytes: &[u8]) -> usize {
        match memchr(b'\r', bytes) {
            Some(at) => {
                self.keep(&bytes[..at]);
                self.delimiter_at = self.at + at;
                self.state = State::Content(1);
                at + 1
            }
            None => {
                self.keep(bytes);
                bytes.len()
            }
        }
    }

    fn pass_delimiter(&mut self, matched: usize, byte: u8) -> usize {
        if byte != self.delimiter[matched] {
            return self.resume_content(matched, b"");
        }
        let matched = matched + 1;
        self.state = if matched == self.delimiter.len() { State::Delimiter } else { State::Content(matched) };
        1
    }

    fn pass_delimiter_end(&mut self, byte: u8) -> usize {
        self.state = match byte {
            b'\r' => State::LineEnd,
            b'-' => State::Dash,
            _ => return self.resume_content(self.delimiter.len(), b""),
        };
        1
    }

    /// The second byte of the pair that makes a delimiter of what was matched.
    fn pass_second(&mut self, byte: u8, pair: &[u8; 2]) -> usize {
        if byte != pair[1] {
            return self.resume_content(self.delimiter.len(), &pair[..1]);
        }
        self.end_part();
        self.state = if pair == b"--" { State::Closed } else { State::Head };
        1
    }

    /// What looked like a delimiter was content: so many bytes of it, and `more`.
    fn resume_content(&mut self, matched: usize, more: &[u8]) -> usize {
        let delimiter = std::mem::take(&mut self.delimiter);
        self.keep(&delimiter[..matched]);
        self.keep(more);
        self.delimiter = delimiter;
        self.state = State::Content(0);
        0
    }

    fn keep(&mut self, bytes: &[u8]) {
        let Some(value) = &mut self.value else { return };
        // One byte over the limit says that the value is too long; the bytes after it say no more.
        let room = LONGEST_VALUE + 1 - value.len();
        value.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn end_part(&mut self) {
        if let Some(value) = self.value.take() {
            let text = match std::str::from_utf8(&value) {
                _ if value.len() > LONGEST_VALUE => Err(Fault::TooLong),
                text => text.map_err(|_| Fault::Undecodable),
            };
            self.fields.note_text(Target::Model, text);
            self.fields.model_span = Some(self.content_at..self.delimiter_at);
        }
        self.head_bytes = 0;
        self.disposition_seen = false;
    }

    fn read_head(&mut self, bytes: &[u8]) -> usize {
        let used = memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
        self.head_bytes += used;
        if self.head_bytes > LONGEST_HEAD {
            self.state = State::Broken;
            return used;
        }
        self.line.extend_from_slice(&bytes[..used]);
        if self.line.ends_with(b"\n") {
            self.state = self.end_line();
            self.content_at = self.at + used;
            self.line.clear();
        }
        used
    }

    fn end_line(&mut self) -> State {
        let line = String::from_utf8_lossy(&self.line).into_owned();
        // To some parsers a bare line feed ends a line, to others it is a part of it.
        let has_line_end = line.strip_suffix("\r\n").is_some_and(|line| !line.contains(char::is_control));
        self.is_plain &= has_line_end;
        let line = line.trim_end_matches(['\r', '\n']);
        if line.is_empty() {
            return State::Content(0);
        }
        let Some((name, value)) = line.split_once(':') else {
            return State::Broken;
        };
        self.is_plain &= !name.contains([' ', '\t']);
        if !name.trim().eq_ignore_ascii_case("content-disposition") {
            return State::Head;
        }
        // Two readings of one form: the engine's need not be this one.
        let (Ok(part), false) = (part(value), self.disposition_seen) else {
            return State::Broken;
        };
        self.disposition_seen = true;
        self.is_plain &= is_plain(value.trim_matches([' ', '\t']));
        match part {
            Part::Other => {}
            Part::Model if self.fields.note_model_said() => self.value = Some(Vec::new()),
            Part::ModelFile if self.fields.note_model_said() => self.fields.note_not_text(Target::Model),
            Part::Model | Part::ModelFile => {}
        }
        State::Head
    }
}

fn part(disposition: &str) -> Result<Part, Ambiguous> {
    let model = parameter(disposition, "name")?.as_deref() == Some("model");
    let file = parameter(disposition, "filename");
    Ok(match (model, file) {
        (false, _) => Part::Other,
        (true, Ok(None)) => Part::Model,
        (true, Ok(Some(_)) | Err(Ambiguous)) => Part::ModelFile,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=XX";

    fn scan(body: &[u8]) -> (Progress, Fields) {
        let mut scanner = FormScanner::new(TYPE).unwrap();
        let progress = scanner.feed(body);
        (progress, scanner.fields().clone())
    }

    fn field(name: &str, value: &str) -> String {
        format!("--XX\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    }

    fn audio() -> String {
        let head = "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\r\nContent-Type: audio/wav\r\n\r\n";
        format!("{head}RIFF\r\n--X\r\r\n-\r\n--XXX\r\n--XX\rname=\"model\"\r\n--XX-\r\n")
    }

    #[test]
    fn the_model_is_found_before_and_behind_the_file() {
        for body in [
            format!("{}{}--XX--", field("model", "m"), audio()),
            format!("{}{}--XX--\r\n", audio(), field("model", "m")),
            format!("preamble\r\n{}{}{}--XX--", field("language", "model"), field("model", "m"), audio()),
            "--XX\r\nX: y\r\ncontent-disposition:form-data;name=model\r\n\r\nm\r\n--XX--".to_owned(),
        ] {
            let (progress, fields) = scan(body.as_bytes());
            assert_eq!((progress, fields.model), (Progress::Closed, Model::Named("m".to_owned())), "{body}");
            assert!(!fields.duplicate_model, "{body}");
        }
    }

    #[test]
    fn the_answer_is_told_with_the_delimiter_behind_the_value() {
        let mut scanner = FormScanner::new(TYPE).unwrap();
        assert_eq!(scanner.feed(field("model", "m").as_bytes()), Progress::More);
        assert_eq!(scanner.feed(b"--XX\r"), Progress::More);
        assert_eq!(scanner.feed(b"\n"), Progress::Answered);
        assert_eq!(scanner.feed(b"\r\nx\r\n--XX-"), Progress::Answered);
        assert_eq!(scanner.feed(b"-"), Progress::Closed);
    }

    #[test]
    fn a_value_keeps_bytes_that_look_like_the_delimiter() {
        for value in ["m\r\n--X", "\r\r\n-", "m\r\n--XXm", "m\r\n--XX\rm", "m\r\n--XX-m", " m\r\n", ""] {
            let (progress, fields) = scan(format!("{}--XX--", field("model", value)).as_bytes());
            assert_eq!((progress, fields.model.name()), (Progress::Closed, Some(value)), "{value:?}");
            let start = field("model", "").len() - "\r\n".len();
            assert_eq!(fields.model_span, Some(start..start + value.len()), "{value:?}");
        }
    }

    #[test]
    fn a_model_that_cannot_be_a_name_is_remembered() {
        let with = |value: &[u8]| {
            let body = [b"--XX\r\nContent-Disposition: form-data; name=model\r\n\r\n", value, b"\r\n--XX--"].concat();
            scan(&body).1.model
        };
        assert_eq!(with(b"\xff"), Model::Undecodable);
        assert_eq!(with(&[b'a'; 1024]), Model::Named("a".repeat(1024)));
        assert_eq!(with(&[b'a'; 1025]), Model::TooLong);
        let file = b"--XX\r\nContent-Disposition: form-data; name=model; filename=x\r\n\r\nm\r\n--XX--";
        assert_eq!(scan(file).1.model, Model::NotText);
    }

    #[test]
    fn the_first_model_wins_and_a_second_is_told() {
        let (_, fields) = scan(format!("{}{}--XX--", field("model", "a"), field("model", "b")).as_bytes());
        assert_eq!((fields.model.name(), fields.duplicate_model), (Some("a"), true));
    }

    #[test]
    fn a_head_that_is_long_broken_or_ambiguous_is_unreadable() {
        let long = format!("--XX\r\nX: {}\r\n", "y".repeat(LONGEST_HEAD));
        let endless = format!("--XX\r\nX: {}", "y".repeat(LONGEST_HEAD));
        for body in [
            &*long,
            &*endless,
            "--XX\r\nno colon\r\n",
            "--XX\r\nContent-Disposition: form-data; name=a; name=model\r\n",
            "--XX\r\nContent-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=model\r\n",
        ] {
            assert_eq!(scan(body.as_bytes()).0, Progress::Unreadable, "{}", &body[..40.min(body.len())]);
        }
    }

    #[test]
    fn a_form_that_hides_a_part_from_one_of_two_parsers_is_not_plain() {
        let plain = |body: &str| {
            let mut scanner = FormScanner::new(TYPE).unwrap();
            scanner.feed(body.as_bytes());
            scanner.is_plain()
        };
        let part = |head: &str| format!("{}--XX\r\n{head}\r\n\r\nother\r\n--XX--", field("model", "m"));
        assert!(plain(&format!("{}{}--XX--\r\n", audio(), field("model", "m"))));
        assert!(plain(&part("Content-Disposition: form-data; name=\"language\"\r\nX-Odd: \"a; name=\\b")));
        for head in [
            "Content-Disposition: form-data; a=\"\nx: \"; name=\"model\"",
            "Content-Disposition: form-data;\u{a0}name=\"model\"",
            "Content-Disposition: form-data; a=\"\\\"; name=\"model\"",
            "Content-Disposition : form-data; name=\"x\"",
            "X: y\nContent-Disposition: form-data; name=\"x\"",
            "X: y\0\r\nContent-Disposition: form-data; name=\"x\"",
        ] {
            assert!(!plain(&part(head)), "{head:?}");
        }
        assert!(!FormScanner::new("multipart/form-data; x=\"\\\"\"; boundary=XX").unwrap().is_plain());
    }

    #[test]
    fn the_limit_on_a_head_is_for_each_part() {
        let body = field("language", "en").repeat(200) + &field("model", "m") + "--XX--";
        let (progress, fields) = scan(body.as_bytes());
        assert_eq!((progress, fields.model.name()), (Progress::Closed, Some("m")));
    }

    #[test]
    fn only_a_form_with_a_boundary_is_searched() {
        for content_type in ["multipart/form-data; boundary=\"a b\"", "Multipart/Form-Data;charset=utf-8; Boundary=x"] {
            assert!(FormScanner::new(content_type).is_some(), "{content_type}");
        }
        let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
        for content_type in [
            &*long,
            "",
            "application/json",
            "multipart/mixed; boundary=x",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=a; boundary=b",
            "multipart/form-data; boundary=\"a\rb\"",
        ] {
            assert!(FormScanner::new(content_type).is_none(), "{content_type}");
        }
    }
}
