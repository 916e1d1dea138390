//! Properties of the observer over generated answers: it reports what a full parse says, and no cut into chunks, no length
//! and no byte changes that.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::json::sample::{Node, Style, feed_in_chunks};

use super::{Observer, Report, reference};

/// What is reported of a body in chunks. The count of content events is added up from what was said of each chunk.
fn observe(observer: &Observer, body: &[u8], cuts: &[usize]) -> Report {
    let mut observer = observer.clone();
    let mut content_events = 0;
    feed_in_chunks(body, cuts, |chunk| content_events += observer.observe(chunk));
    assert_eq!(observer.report().content_events, content_events);
    observer.report()
}

fn key() -> impl Strategy<Value = String> {
    const KNOWN: &[&str] = &[
        "type",
        "object",
        "choices",
        "delta",
        "message",
        "response",
        "item",
        "content_block",
        "usage",
        "stop_reason",
        "finish_reason",
        "status",
        "incomplete_details",
        "reason",
        "content",
        "output",
        "error",
        "text",
        "thinking",
        "partial_json",
        "reasoning",
        "tool_calls",
        "function_call",
        "prompt_tokens",
        "input_tokens",
        "completion_tokens",
        "output_tokens",
        "cached_tokens",
        "prompt_tokens_details",
        "cache_read_input_tokens",
        "a_key_that_is_longer_than_any_that_is_known_to_anyone",
    ];
    prop_oneof![
        12 => proptest::sample::select(KNOWN).prop_map(str::to_owned),
        1 => any::<String>(),
        1 => Just("usage\u{0}".to_owned()),
    ]
}

/// Words that mean something somewhere, and other texts.
fn text() -> impl Strategy<Value = String> {
    const WORDS: &[&str] = &[
        "",
        "error",
        "ping",
        "message_stop",
        "message_delta",
        "content_block_delta",
        "response.completed",
        "response.failed",
        "response.output_text.done",
        "response.created",
        "stop",
        "tool_calls",
        "max_tokens",
        "incomplete",
        "in_progress",
        "function_call",
        "tool_use",
        "[DONE]",
        r#"","usage":{"prompt_tokens":1,"completion_tokens":2},""#,
        "\n\ndata: {\"usage\":{\"prompt_tokens\":1}}\n\n",
        "a_word_that_is_longer_than_any_that_is_known_to_anyone",
    ];
    prop_oneof![
        3 => proptest::sample::select(WORDS).prop_map(str::to_owned),
        1 => "[a-z\\\\\"{}\\[\\]:,\n\r😀é/ ]{0,60}",
        1 => any::<String>(),
    ]
}

fn scalar() -> impl Strategy<Value = Node> {
    const SCALARS: &[&str] = &[
        "0",
        "-1",
        "7",
        "640",
        "4294967295",
        "4294967296",
        "12345678901234567890123",
        "1e3",
        "1e30",
        "5.0",
        "-0",
        "true",
        "false",
        "null",
    ];
    proptest::sample::select(SCALARS).prop_map(Node::Scalar)
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![3 => text().prop_map(Node::Text), 2 => scalar()].prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            1 => vec(inner.clone(), 0..4).prop_map(Node::Array),
            3 => vec((key(), inner), 0..5).prop_map(Node::Object),
        ]
    })
}

/// A member of that key and value, or seldom of any value.
fn member(key: &'static str, value: impl Strategy<Value = Node> + 'static) -> BoxedStrategy<(String, Node)> {
    prop_oneof![6 => value, 1 => node()].prop_map(move |value| (key.to_owned(), value)).boxed()
}

/// Some of the members in any order, with others among them.
fn object(members: Vec<BoxedStrategy<(String, Node)>>) -> BoxedStrategy<Node> {
    let any_of = proptest::strategy::Union::new(members);
    vec(prop_oneof![8 => any_of, 1 => (key(), node())], 0..6).prop_map(Node::Object).boxed()
}

fn usage() -> BoxedStrategy<Node> {
    let details = || object(vec![member("cached_tokens", scalar())]);
    object(vec![
        member("prompt_tokens", scalar()),
        member("completion_tokens", scalar()),
        member("input_tokens", scalar()),
        member("output_tokens", scalar()),
        member("cache_read_input_tokens", scalar()),
        member("cache_creation_input_tokens", scalar()),
        member("prompt_tokens_details", details()),
        member("input_tokens_details", details()),
    ])
}

fn said() -> BoxedStrategy<Node> {
    text().prop_map(Node::Text).boxed()
}

fn blocks() -> BoxedStrategy<Node> {
    vec(block(), 0..3).prop_map(Node::Array).boxed()
}

fn block() -> BoxedStrategy<Node> {
    object(vec![
        member("type", said()),
        member("text", said()),
        member("input", node()),
        member("content", blocks_of_text()),
    ])
}

fn blocks_of_text() -> BoxedStrategy<Node> {
    vec(object(vec![member("type", said()), member("usage", usage())]), 0..2).prop_map(Node::Array).boxed()
}

fn answer_members() -> Vec<BoxedStrategy<(String, Node)>> {
    let reason = object(vec![member("reason", said())]);
    vec![
        member("usage", usage()),
        member("stop_reason", said()),
        member("status", said()),
        member("incomplete_details", reason),
        member("content", blocks()),
        member("output", blocks()),
        member("error", node()),
    ]
}

fn choice() -> BoxedStrategy<Node> {
    let message = || {
        object(vec![
            member("role", said()),
            member("content", said()),
            member("reasoning", said()),
            member("reasoning_content", said()),
            member("tool_calls", vec(node(), 0..2).prop_map(Node::Array)),
            member("function_call", node()),
        ])
    };
    object(vec![
        member("delta", message()),
        member("message", message()),
        member("text", said()),
        member("finish_reason", said()),
        member("logprobs", node()),
    ])
}

/// A document of any API, and of several at once.
fn document() -> BoxedStrategy<Node> {
    let delta = object(vec![
        member("type", said()),
        member("text", said()),
        member("thinking", said()),
        member("partial_json", said()),
        member("stop_reason", said()),
    ]);
    let mut members = answer_members();
    members.extend([
        member("type", said()),
        member("object", said()),
        member("choices", vec(choice(), 0..3).prop_map(Node::Array)),
        member("delta", prop_oneof![delta, said()]),
        member("message", object(answer_members())),
        member("response", object(answer_members())),
        member("item", block()),
        member("content_block", block()),
    ]);
    prop_oneof![8 => object(members), 1 => node()].boxed()
}

/// What can stand in a stream.
#[derive(Clone, Debug)]
enum Piece {
    Event { name: Option<String>, name_is_last: bool, data: Node },
    Line(&'static str),
    Done,
}

impl Piece {
    fn lines(&self, style: &mut Style) -> Vec<String> {
        match self {
            Piece::Line(line) => vec![(*line).to_owned()],
            Piece::Done => vec!["data: [DONE]".to_owned(), String::new()],
            Piece::Event { name, name_is_last, data } => {
                let mut json = String::new();
                data.write(&mut json, style);
                let mut lines: Vec<_> = json.split(['\n', '\r']).map(|line| format!("data:{line}")).collect();
                let name_at = if *name_is_last { lines.len() } else { 0 };
                lines.splice(name_at..name_at, name.iter().map(|name| format!("event: {name}"))).for_each(drop);
                lines.push(String::new());
                lines
            }
        }
    }
}

fn piece() -> impl Strategy<Value = Piece> {
    const LINES: &[&str] =
        &["", ": ping", ":", "id: 7", "retry:", "event", "data", "event: ", "eventually: error", "x"];
    let name = text().prop_map(|name| name.replace(['\n', '\r'], ""));
    prop_oneof![
        6 => (proptest::option::of(name), any::<bool>(), document())
            .prop_map(|(name, name_is_last, data)| Piece::Event { name, name_is_last, data }),
        1 => proptest::sample::select(LINES).prop_map(Piece::Line),
        1 => Just(Piece::Done),
    ]
}

/// Writes a stream with the line ends that `style` has, for each piece one. Line breaks between the tokens of data begin
/// another line of data.
fn write(pieces: &[Piece], style: &mut Style) -> Vec<u8> {
    let mut out = String::new();
    for piece in pieces {
        let end = ["\n", "\n", "\r\n", "\r"][usize::from(style.next()) % 4];
        for line in piece.lines(style) {
            out.push_str(&line);
            out.push_str(end);
        }
    }
    out.into_bytes()
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    vec(1..20_usize, 1..8)
}

/// Bytes of which answers are made, so that random ones get past the first few.
const PIECES: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\"",
    b":",
    b",",
    b"\\",
    b"\\u00",
    b"7",
    b"null",
    b"\n",
    b"\n\n",
    b"\r",
    b"\r\n\r\n",
    b"data:",
    b"data: {",
    b"data: [DONE]\n\n",
    b"event: response.completed\n",
    b"event: ping\n",
    b"\"type\":\"error\",",
    b"{\"usage\":{\"prompt_tokens\":7,",
    b"\"completion_tokens\":3}",
    b"\"prompt_tokens_details\":{\"cached_tokens\":5}",
    b"\"choices\":[{\"delta\":{\"content\":\"x",
    b"\"tool_calls\":[",
    b"\"finish_reason\":\"stop\"",
    b"\"response\":{\"output\":[{\"type\":\"function_call\"",
    b"\xef\xbb\xbf",
    b"\xff",
];

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => proptest::sample::select(PIECES).prop_map(<[u8]>::to_vec),
        1 => vec(any::<u8>(), 0..4),
    ];
    vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// Events of one shape in a row, as engines write them: with a text, and sometimes with something else that changes.
fn alike() -> impl Strategy<Value = Vec<u8>> {
    const SHAPES: &[&str] = &[
        r#"data: {"id":"x","choices":[{"index":0,"delta":{"content":TEXT},"finish_reason":MORE}]}"#,
        r#"data: {"choices":[{"delta":{"reasoning":"","content":TEXT}}],"usage":{"prompt_tokens":MORE}}"#,
        r#"data: {"choices":[{"text":TEXT,"x":{"text":MORE}}]}"#,
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":TEXT}}",
        r#"data: {"type":"response.output_text.delta","delta":TEXT,"n":MORE}"#,
        r#"data: {"type":TEXT,"delta":TEXT,"status":MORE}"#,
    ];
    let text = prop_oneof![4 => "[a-z \u{e9}]{0,6}", 1 => text()];
    let more = prop_oneof![6 => Just("null".to_owned()), 1 => Just("\"stop\"".to_owned()), 1 => Just("7".to_owned())];
    let end = prop_oneof![3 => Just("\n\n"), 1 => Just("\r\n\r\n"), 1 => Just("\r\r"), 1 => Just("\n: x\n\n")];
    (proptest::sample::select(SHAPES), vec((text, more, end), 0..20)).prop_map(|(shape, events)| {
        let written = |text: &String| serde_json::to_string(text).expect("a string is JSON");
        let event = |(text, more, end): &(String, String, &str)| {
            shape.replace("TEXT", &written(text)).replace("MORE", more) + end
        };
        events.iter().map(event).collect::<String>().into_bytes()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn a_document_tells_what_a_parser_sees(root in document(), choices in vec(any::<u8>(), 1..64), cuts in cuts()) {
        let mut body = String::new();
        root.write(&mut body, &mut Style::new(choices));
        let report = observe(&Observer::of_document(), body.as_bytes(), &cuts);
        match reference::of_document(body.as_bytes()) {
            Some(expected) => prop_assert_eq!(report, expected),
            None => {
                prop_assert!(!matches!(root, Node::Object(_)));
                prop_assert_eq!(report, Report::default());
            }
        }
    }

    #[test]
    fn a_stream_tells_what_a_parser_sees(
        pieces in vec(piece(), 0..5),
        choices in vec(any::<u8>(), 1..64),
        cuts in cuts(),
        mark in any::<bool>(),
    ) {
        let mut body = if mark { b"\xEF\xBB\xBF".to_vec() } else { Vec::new() };
        body.extend(write(&pieces, &mut Style::new(choices)));
        let expected = reference::of_stream(&body).expect("generated data can be read");
        prop_assert_eq!(observe(&Observer::of_stream(), &body, &cuts), expected);
    }

    #[test]
    fn events_that_are_alike_tell_what_each_of_them_tells(body in alike(), cuts in vec(1..400_usize, 1..8)) {
        let expected = reference::of_stream(&body).expect("generated data can be read");
        prop_assert_eq!(observe(&Observer::of_stream(), &body, &cuts), expected);
        prop_assert_eq!(observe(&Observer::of_stream(), &body, &[usize::MAX]), expected);
    }

    #[test]
    fn no_cut_changes_what_broken_answers_tell(body in pieces(), cuts in cuts()) {
        for observer in [Observer::of_document(), Observer::of_stream()] {
            prop_assert_eq!(observe(&observer, &body, &cuts), observe(&observer, &body, &[usize::MAX]));
        }
    }

    #[test]
    fn no_bytes_make_an_observer_panic(body in vec(any::<u8>(), 0..512), cuts in cuts()) {
        observe(&Observer::of_document(), &body, &cuts);
        observe(&Observer::of_stream(), &body, &cuts);
    }
}
