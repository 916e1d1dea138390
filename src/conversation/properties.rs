//! Properties of the scanners over generated bodies: they see what a parser sees, and no cut into
//! chunks, depth or byte changes that.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::json::sample::{Node, Style, feed_in_chunks};

use super::path::Target;
use super::{Fields, FormScanner, History, Progress, RootKeys, Scanner, Wanted, reference};

fn scan(body: &[u8], cuts: &[usize], wanted: Wanted) -> (Progress, Fields, Option<History>) {
    let mut scanner = Scanner::new(wanted);
    feed_in_chunks(body, cuts, |chunk| {
        scanner.feed(chunk);
    });
    (scanner.progress(), scanner.fields().clone(), scanner.history().cloned())
}

fn scan_form(body: &[u8], cuts: &[usize]) -> (Progress, Fields) {
    let mut scanner = FormScanner::new("multipart/form-data; boundary=X").unwrap();
    feed_in_chunks(body, cuts, |chunk| {
        scanner.feed(chunk);
    });
    (scanner.progress(), scanner.fields().clone())
}

const UUID: &str = "be1bd76a-8294-49e0-b3d2-e58bc1e620a9";

fn key() -> impl Strategy<Value = String> {
    const KNOWN: &[&str] = &[
        "model",
        "metadata",
        "user_id",
        "session_id",
        "conversation",
        "id",
        "conversation_id",
        "prompt_cache_key",
        "tools",
        "thinking",
        "type",
        "output_config",
        "response_format",
        "format",
        "text",
        "messages",
        "input",
        "system",
        "role",
        "content",
        "cache_control",
    ];
    prop_oneof![
        12 => proptest::sample::select(KNOWN).prop_map(str::to_owned),
        1 => any::<String>(),
        1 => Just("model\u{0}".to_owned()),
    ]
}

/// Texts that mean something somewhere.
fn word() -> impl Strategy<Value = Node> {
    const WORDS: &[&str] = &[
        "user",
        "assistant",
        "system",
        "text",
        "input_text",
        "disabled",
        "json_schema",
        "reasoning",
        "function_call",
        "x-anthropic-billing-header: a",
    ];
    proptest::sample::select(WORDS).prop_map(|word| Node::Text(word.to_owned()))
}

/// What a user's message may say: preambles, what only looks like one, and words.
fn said() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "<system-reminder>",
        "</system-reminder>",
        "<system-reminder>a</system-reminder>",
        "<environment_context>b</environment_context>",
        "<environment_",
        "<",
        " \n",
        "words",
    ];
    vec(proptest::sample::select(PIECES), 0..6).prop_map(|pieces| pieces.concat())
}

fn block() -> impl Strategy<Value = Node> {
    let text = || prop_oneof![3 => said(), 1 => text()].prop_map(Node::Text);
    let member = prop_oneof![
        4 => text().prop_map(|text| ("text".to_owned(), text)),
        4 => Just(("type".to_owned(), Node::Text("text".to_owned()))),
        1 => word().prop_map(|kind| ("type".to_owned(), kind)),
        1 => text().prop_map(|text| ("content".to_owned(), text)),
        1 => (key(), node()),
        1 => node().prop_map(|node| ("cache_control".to_owned(), node)),
    ]
    .boxed();
    let usual = || [("text", said().boxed()), ("type", Just("text".to_owned()).boxed())];
    let usual = || usual().map(|(key, text)| text.prop_map(move |text| (key.to_owned(), Node::Text(text))));
    prop_oneof![
        1 => vec(member.clone(), 0..4),
        2 => usual().prop_map(Vec::from).prop_shuffle(),
        1 => (usual(), vec(member, 0..3)).prop_map(|(usual, more)| [usual.to_vec(), more].concat()).prop_shuffle(),
    ]
    .prop_map(Node::Object)
}

fn message() -> impl Strategy<Value = Node> {
    let content = prop_oneof![
        3 => vec(prop_oneof![6 => block(), 1 => node()], 0..5).prop_map(Node::Array),
        2 => said().prop_map(Node::Text),
        1 => node(),
    ];
    let role = prop_oneof![3 => Just(Node::Text("user".to_owned())), 2 => word(), 1 => node()];
    let member = prop_oneof![
        4 => content.prop_map(|content| ("content".to_owned(), content)),
        4 => role.prop_map(|role| ("role".to_owned(), role)),
        1 => word().prop_map(|kind| ("type".to_owned(), kind)),
        1 => (key(), node()),
    ];
    vec(member, 0..5).prop_map(Node::Object)
}

/// A body with messages, most of them only once.
fn turn() -> impl Strategy<Value = Node> {
    let messages = || vec(prop_oneof![8 => message(), 1 => node()], 0..6).prop_map(Node::Array);
    let list = prop_oneof![
        4 => messages().prop_map(|list| ("messages", list)),
        3 => messages().prop_map(|list| ("input", list)),
        1 => said().prop_map(|said| ("input", Node::Text(said))),
    ];
    let system = prop_oneof![vec(block(), 0..4).prop_map(Node::Array), text().prop_map(Node::Text), word(),];
    let other = vec(
        prop_oneof![
            2 => system.prop_map(|system| ("system".to_owned(), system)),
            3 => (key(), node()),
        ],
        0..4,
    );
    (list, other, any::<prop::sample::Index>()).prop_map(|((key, list), mut members, at)| {
        members.insert(at.index(members.len() + 1), (key.to_owned(), list));
        Node::Object(members)
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[a-z\\\\\"{}\\[\\]:,\n😀é/ ]{0,40}",
        Just("null".to_owned()),
        Just(" ses_1 ".to_owned()),
        Just(format!("user_1_account__session_{UUID}")),
        Just(format!(r#"{{"device_id":"d","session_id":"{UUID}"}}"#)),
        Just(r#"{"session_id":"\u00e9"}"#.to_owned()),
        Just(format!(r#"{{"session_id":"{}"}}"#, "x".repeat(240))),
        (1020..1030_usize).prop_map(|length| "é".repeat(length / 2)),
        (255..258_usize).prop_map(|length| "s".repeat(length)),
    ]
}

fn node() -> impl Strategy<Value = Node> {
    const SCALARS: &[&str] = &["0", "-1.5e+3", "12345678901234567890", "true", "false", "null"];
    let leaf = prop_oneof![
        4 => text().prop_map(Node::Text),
        2 => word(),
        1 => proptest::sample::select(SCALARS).prop_map(Node::Scalar),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            1 => vec(inner.clone(), 0..4).prop_map(Node::Array),
            3 => vec((key(), inner), 0..5).prop_map(Node::Object),
        ]
    })
}

fn document() -> impl Strategy<Value = Node> {
    prop_oneof![vec((key(), node()), 0..8).prop_map(Node::Object), turn()]
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    vec(1..20_usize, 1..8)
}

/// Bytes of which documents are made, so that random ones get past the first few.
fn pieces(alphabet: &'static [&'static [u8]]) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => proptest::sample::select(alphabet).prop_map(<[u8]>::to_vec),
        1 => vec(any::<u8>(), 0..4),
    ];
    (proptest::sample::select(alphabet), vec(piece, 0..40))
        .prop_map(|(first, rest)| [first.to_vec(), rest.concat()].concat())
}

const JSON_PIECES: &[&[u8]] = &[
    b"{",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\"",
    b":",
    b",",
    b" ",
    b"\\",
    b"\\u00",
    b"\\ud83d",
    b"\\ude00",
    b"1",
    b"null",
    b"\"model\":",
    b"{\"model\":\"m\"",
    b"\"metadata\":{",
    b"\"user_id\":",
    b"\"session_id\":\"s\"",
    b"\"conversation\":{",
    b"\"id\":\"c\"",
    b"\xef\xbb\xbf",
    b"\xff",
    b"{\"session_id\":\"t\",",
    b"{\"messages\":[{\"role\":\"user\",\"content\":",
    b"{\"system\":\"s\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":",
    b"\"<system-reminder>a</system-reminder>b\"",
    b"\"cache_control\":",
    b"\"tools\":[",
    b"}]}",
];

const FORM_PIECES: &[&[u8]] = &[
    b"--X",
    b"\r\n--X\r\n",
    b"\r\n--X--",
    b"\r\n",
    b"\r",
    b"\n",
    b"-",
    b"X",
    b"m",
    b"--X\r\n",
    b"Content-Disposition: form-data; name=model\r\n\r\n",
    b"Content-Disposition: form-data; name=\"file\"; filename=f\r\n\r\n",
    b"\r\n--X\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm",
    b"; name=",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn the_scanner_sees_what_a_parser_sees(root in document(), choices in vec(any::<u8>(), 1..64), cuts in cuts()) {
        let mut body = String::new();
        root.write(&mut body, &mut Style::new(choices));
        let (expected, history) = reference::read(body.as_bytes()).unwrap();

        for wanted in [Wanted::ModelFirst, Wanted::ModelAndSession] {
            let seen = scan(body.as_bytes(), &cuts, wanted);
            prop_assert_eq!(&seen, &(Progress::Closed, expected.clone(), history.clone()));
        }
        if let (Some(span), Some(name)) = (&expected.model_span, expected.model.name()) {
            let value: String = serde_json::from_str(&body[span.clone()]).unwrap();
            prop_assert_eq!(value, name);
        }

        let (_, model_only, history) = scan(body.as_bytes(), &cuts, Wanted::Model);
        let mut duplicates = RootKeys::default();
        if expected.duplicate_model {
            duplicates.insert(Target::Model);
        }
        let expected = Fields {
            model: expected.model,
            duplicate_model: expected.duplicate_model,
            duplicates,
            model_span: expected.model_span,
            ..Fields::default()
        };
        prop_assert_eq!((model_only, history), (expected, None));
    }

    #[test]
    fn the_end_is_told_with_the_last_brace_and_an_answer_stays(root in document(), choices in vec(any::<u8>(), 1..64)) {
        let mut body = String::new();
        root.write(&mut body, &mut Style::new(choices));
        let end = body.trim_end().len();
        let mut scanner = Scanner::new(Wanted::ModelAndSession);
        let mut answer = None;
        for (at, byte) in body.bytes().enumerate() {
            let progress = scanner.feed(&[byte]);
            prop_assert_eq!(progress == Progress::Closed, at + 1 >= end);
            let found = (scanner.fields().model.clone(), scanner.fields().metadata_session.clone());
            if progress == Progress::Answered {
                prop_assert_eq!(answer.get_or_insert_with(|| found.clone()), &found);
            } else {
                prop_assert!(answer.is_none() || progress == Progress::Closed);
            }
        }
    }

    #[test]
    fn no_cut_changes_what_is_seen_in_broken_json(body in pieces(JSON_PIECES), cuts in cuts()) {
        for wanted in [Wanted::Model, Wanted::ModelFirst, Wanted::ModelAndSession] {
            let whole = scan(&body, &[usize::MAX], wanted);
            prop_assert_eq!(&scan(&body, &cuts, wanted), &whole);

            let mut scanner = Scanner::new(wanted);
            let used = scanner.search(&body);
            prop_assert_eq!(used < body.len() && scanner.progress() == Progress::More, false);
            let progress = scanner.feed(&body[used..]);
            prop_assert_eq!((progress, scanner.fields().clone(), scanner.history().cloned()), whole);
        }
    }

    #[test]
    fn messages_end_where_a_value_of_no_interest_would(list in pieces(JSON_PIECES), cuts in cuts()) {
        let with = |key: &str| [format!("{{\"{key}\":[").as_bytes(), &list[..], br#"],"model":"m"}"#].concat();
        let (progress, fields, _) = scan(&with("messages"), &cuts, Wanted::ModelAndSession);
        let (expected, skipped, _) = scan(&with("massages"), &cuts, Wanted::ModelAndSession);
        prop_assert_eq!((progress, fields.model), (expected, skipped.model));
    }

    #[test]
    fn no_cut_changes_what_is_seen_in_a_form(body in pieces(FORM_PIECES), cuts in cuts()) {
        prop_assert_eq!(scan_form(&body, &cuts), scan_form(&body, &[usize::MAX]));
    }

    #[test]
    fn no_bytes_make_a_scanner_panic(body in vec(any::<u8>(), 0..512), cuts in cuts(), content_type in any::<String>()) {
        scan(&body, &cuts, Wanted::ModelAndSession);
        scan_form(&body, &cuts);
        FormScanner::new(&content_type);
        FormScanner::new(&format!("multipart/form-data{content_type}"));
    }

    #[test]
    fn a_form_says_its_model_whatever_its_file_holds(
        audio in pieces(FORM_PIECES),
        name in "[a-z\r-]{0,8}",
        cuts in cuts(),
    ) {
        // The sender of a form chooses a boundary that its file does not contain.
        let audio: Vec<_> = audio.into_iter().map(|byte| if byte == b'X' { b'Y' } else { byte }).collect();
        let file = [b"--X\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\n", &audio[..], b"\r\n"].concat();
        let model = format!("--X\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{name}\r\n").into_bytes();
        for parts in [[&file, &model], [&model, &file]] {
            let body = [parts[0], parts[1], &b"--X--"[..]].concat();
            let (progress, fields) = scan_form(&body, &cuts);
            prop_assert_eq!((progress, fields.model.name()), (Progress::Closed, Some(&*name)));
            prop_assert_eq!(&body[fields.model_span.unwrap()], name.as_bytes());
        }
    }
}
