//! A request, as the bytes that a client writes.

/// What a client asks.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: &'static str,
    pub path: String,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    pub framing: Framing,
}

/// How a body's end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    Absent,
    Length,
    /// In chunks of so many bytes.
    Chunks(usize),
}

impl Call {
    pub fn get(path: &str) -> Self {
        Call::new("GET", path, Vec::new(), Framing::Absent)
    }

    pub fn head(path: &str) -> Self {
        Call::new("HEAD", path, Vec::new(), Framing::Absent)
    }

    pub fn post(path: &str, body: impl Into<Vec<u8>>) -> Self {
        Call::new("POST", path, body.into(), Framing::Length).header("content-type", "application/json")
    }

    fn new(method: &'static str, path: &str, body: Vec<u8>, framing: Framing) -> Self {
        Call { method, path: path.to_owned(), headers: Vec::new(), body, framing }
    }

    pub fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// To the admin listener, which takes orders only under an address.
    pub fn at_localhost(self) -> Self {
        self.header("Host", "localhost")
    }

    /// Of the conversation that `id` names.
    pub fn of(self, id: &str) -> Self {
        self.header("session-id", id)
    }

    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    pub fn chunked(mut self, bytes: usize) -> Self {
        self.framing = Framing::Chunks(bytes);
        self
    }

    /// The whole request.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head_bytes();
        bytes.extend_from_slice(&self.body_bytes());
        bytes
    }

    /// The request line and the headers, with the empty line.
    pub fn head_bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path).into_bytes();
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            // By an address: by a name, the admin listener tells nothing.
            head.extend_from_slice(b"Host: 127.0.0.1\r\n");
        }
        for (name, value) in &self.headers {
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value);
            head.extend_from_slice(b"\r\n");
        }
        match self.framing {
            Framing::Absent => {}
            Framing::Length => head.extend_from_slice(format!("Content-Length: {}\r\n", self.body.len()).as_bytes()),
            Framing::Chunks(_) => head.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        }
        head.extend_from_slice(b"\r\n");
        head
    }

    /// The body as it goes over the wire.
    pub fn body_bytes(&self) -> Vec<u8> {
        match self.framing {
            Framing::Absent => Vec::new(),
            Framing::Length => self.body.clone(),
            Framing::Chunks(size) => in_chunks(&self.body, size),
        }
    }
}

fn in_chunks(body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + body.len() / size * 8 + 16);
    for chunk in body.chunks(size) {
        bytes.extend_from_slice(&chunk_of(chunk));
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

/// One chunk of a chunked body.
pub fn chunk_of(data: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{:x}\r\n", data.len()).into_bytes();
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(b"\r\n");
    bytes
}
