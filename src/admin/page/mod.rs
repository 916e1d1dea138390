//! The page in the browser: files that are part of the binary. They come from this listener alone, ask nothing of any other,
//! and are served as they lie here.

use std::hash::{Hash as _, Hasher as _};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use pingora::http::RequestHeader;
use siphasher::sip::SipHasher13;

use super::answer::Answer;

/// The files of the page, each with a mark of its content.
#[derive(Debug)]
pub(super) struct Page {
    files: Vec<(&'static File, HeaderValue)>,
}

#[derive(Debug)]
struct File {
    path: &'static str,
    content_type: &'static str,
    content: &'static str,
}

/// Nothing may be loaded or asked but what comes from here, no script or style may stand in the page itself, no string may
/// become markup, and no other page may frame this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! file {
    ($name:literal, $content_type:expr) => {
        File { path: concat!("/page/", $name), content_type: $content_type, content: include_str!($name) }
    };
}

const FILES: &[File] = &[
    File { path: "/", content_type: HTML, content: include_str!("index.html") },
    file!("icon.svg", SVG),
    file!("base.css", CSS),
    file!("card.css", CSS),
    file!("table.css", CSS),
    file!("chart.css", CSS),
    file!("theme.js", SCRIPT),
    file!("main.js", SCRIPT),
    file!("card.js", SCRIPT),
    file!("chart.js", SCRIPT),
    file!("cold.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("events.js", SCRIPT),
    file!("facts.js", SCRIPT),
    file!("feed.js", SCRIPT),
    file!("format.js", SCRIPT),
    file!("gpus.js", SCRIPT),
    file!("numbers.js", SCRIPT),
    file!("overview.js", SCRIPT),
    file!("panels.js", SCRIPT),
    file!("replicas.js", SCRIPT),
    file!("shapes.js", SCRIPT),
    file!("words.js", SCRIPT),
];

/// Whether a path is that of a file of the page.
pub(super) fn has(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

impl Page {
    pub fn new() -> Self {
        Page { files: FILES.iter().map(|file| (file, mark_of(file.content))).collect() }
    }

    /// The file at a path, or that the reader's copy of it is still good.
    pub fn answer(&self, request: &RequestHeader) -> Answer {
        let Some((file, mark)) = self.files.iter().find(|(file, _)| file.path == request.uri.path()) else {
            return Answer::not_found();
        };
        let body = Bytes::from_static(file.content.as_bytes());
        let mut answer = Answer::ok(file.content_type, body)
            .with(header::ETAG, mark.clone())
            // A copy may be kept, but is asked for each time: after an upgrade no file meets one of another version.
            .with(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))
            .with(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY))
            .with(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        if has_mark(&request.headers, mark) {
            answer.status = StatusCode::NOT_MODIFIED;
        }
        answer
    }
}

/// A mark that changes with the content, and is the same in every process of a build.
fn mark_of(content: &str) -> HeaderValue {
    let mut hasher = SipHasher13::new();
    content.hash(&mut hasher);
    let mark = format!("\"{:016x}\"", hasher.finish());
    // Never: it is made of hexadecimal digits. Without a mark, the file is sent each time.
    HeaderValue::from_str(&mark).unwrap_or(HeaderValue::from_static("\"\""))
}

/// Whether the reader says that it has the file with that mark.
fn has_mark(request: &HeaderMap, mark: &HeaderValue) -> bool {
    let known = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    known.flat_map(|marks| marks.split(',')).any(|known| known.trim().trim_start_matches("W/").as_bytes() == mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_page_is_short_enough_to_be_read() {
        for file in FILES {
            assert!(file.content.lines().count() <= 400, "{}", file.path);
        }
    }

    #[test]
    fn what_a_file_refers_to_is_a_file_of_the_page() {
        let mut references = 0;
        for file in FILES {
            for word in file.content.split(['"', '\'']).filter(|word| !word.contains(char::is_whitespace)) {
                let path = match word.strip_prefix("./") {
                    Some(name) => format!("/page/{name}"),
                    None if word.starts_with("/page/") => word.to_owned(),
                    None => continue,
                };
                references += 1;
                assert!(has(&path), "{path} in {}", file.path);
            }
        }
        assert!(references > FILES.len(), "each but the first is referred to, and some often");
    }

    #[test]
    fn a_copy_is_good_as_long_as_its_mark_is_that_of_the_file() {
        let page = Page::new();
        let status = |path: &str, known: &str| {
            let mut request = RequestHeader::build("GET", path.as_bytes(), None).unwrap();
            request.insert_header(header::IF_NONE_MATCH, known).unwrap();
            page.answer(&request).status
        };
        let mark = page.files[0].1.to_str().unwrap();
        assert_eq!(status("/", mark), StatusCode::NOT_MODIFIED);
        assert_eq!(status("/", &format!("\"other\", W/{mark}")), StatusCode::NOT_MODIFIED);
        assert_eq!(status("/", "\"other\""), StatusCode::OK);
        assert!(page.files.iter().skip(1).all(|(_, other)| other != mark));
        assert_eq!(status("/page/none", mark), StatusCode::NOT_FOUND);
    }
}
