//! Cuts a stream of server-sent events into the parts that matter, as the standard has it (WHATWG HTML, 9.2.6): lines end
//! with LF, CR LF or CR, one space after the colon is no part of the value, and an empty line ends an event.

use memchr::{memchr2, memchr3};

/// A field whose values matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Event,
    Data,
}

/// The next part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Nothing that matters.
    Nothing,
    /// A line with a value of the field begins.
    Begin(Field),
    /// More of the value.
    Value(Field, &'a [u8]),
    /// The value has ended with its line.
    End(Field),
    /// The event has ended.
    Event,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the first byte of a line.
    Line,
    Name,
    /// Behind the colon.
    Colon(Option<Field>),
    Value(Option<Field>),
}

/// Bytes of the longest name that matters.
const NAME_MAX: usize = b"event".len();

#[derive(Clone, Debug)]
pub(super) struct Events {
    place: Place,
    /// The last line ended with a CR, to which a LF may belong.
    after_cr: bool,
    /// The name under way, of a line that was cut in it.
    name: [u8; NAME_MAX],
    name_length: usize,
}

impl Events {
    pub(super) fn new() -> Self {
        Self { place: Place::Line, after_cr: false, name: [0; NAME_MAX], name_length: 0 }
    }

    /// Whether the next byte is the first of a line, and no rest of the last one.
    pub(super) fn is_at_line(&self) -> bool {
        self.place == Place::Line && !self.after_cr
    }

    /// Consumes some bytes, or none where only the place changed.
    #[inline]
    pub(super) fn next<'a>(&mut self, bytes: &'a [u8]) -> (usize, Part<'a>) {
        match self.place {
            Place::Line => self.begin_line(bytes),
            Place::Name => self.read_name(bytes),
            Place::Colon(field) => {
                self.place = Place::Value(field);
                (usize::from(bytes[0] == b' '), Part::Nothing)
            }
            Place::Value(field) => self.pass_value(field, bytes),
        }
    }

    fn begin_line<'a>(&mut self, bytes: &'a [u8]) -> (usize, Part<'a>) {
        let after_cr = std::mem::take(&mut self.after_cr);
        match bytes[0] {
            b'\n' if after_cr => (1, Part::Nothing),
            end @ (b'\n' | b'\r') => {
                self.after_cr = end == b'\r';
                (1, Part::Event)
            }
            // Most lines, and in one piece.
            b'd' if bytes.starts_with(b"data:") => self.begin_value(b"data:".len(), Some(Field::Data)),
            _ => {
                self.name_length = 0;
                self.place = Place::Name;
                (0, Part::Nothing)
            }
        }
    }

    fn begin_value<'a>(&mut self, used: usize, field: Option<Field>) -> (usize, Part<'a>) {
        self.place = Place::Colon(field);
        (used, field.map_or(Part::Nothing, Part::Begin))
    }

    fn read_name<'a>(&mut self, bytes: &'a [u8]) -> (usize, Part<'a>) {
        let end = memchr3(b':', b'\n', b'\r', bytes);
        let read = &bytes[..end.unwrap_or(bytes.len())];
        if let Some(room) = self.name.get_mut(self.name_length..self.name_length + read.len()) {
            room.copy_from_slice(read);
        }
        self.name_length += read.len();
        let Some(end) = end else { return (bytes.len(), Part::Nothing) };
        let field = self.field();
        if bytes[end] == b':' {
            return self.begin_value(end + 1, field);
        }
        // A line of nothing but a name has an empty value.
        self.place = Place::Value(field);
        (end, field.map_or(Part::Nothing, Part::Begin))
    }

    fn field(&self) -> Option<Field> {
        match self.name.get(..self.name_length) {
            Some(b"event") => Some(Field::Event),
            Some(b"data") => Some(Field::Data),
            Some(_) | None => None,
        }
    }

    fn pass_value<'a>(&mut self, field: Option<Field>, bytes: &'a [u8]) -> (usize, Part<'a>) {
        match (memchr2(b'\n', b'\r', bytes), field) {
            (Some(0), _) => {
                self.place = Place::Line;
                self.after_cr = bytes[0] == b'\r';
                (1, field.map_or(Part::Nothing, Part::End))
            }
            (end, Some(field)) => {
                let value = &bytes[..end.unwrap_or(bytes.len())];
                (value.len(), Part::Value(field, value))
            }
            (end, None) => (end.unwrap_or(bytes.len()), Part::Nothing),
        }
    }
}
