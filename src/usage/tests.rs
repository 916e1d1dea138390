use super::{Observer, Report, StopReason, Usage, reference};

/// Answers of the real vLLM 0.32, as they came on the wire but for the framing of chunks. Of the long ones some events in
/// the middle are left out.
const RECORDED: [(&str, Report); 34] = [
    ("chat", told(740, Some(0), 4).stopped(StopReason::Length)),
    ("chat-two-choices", told(811, Some(768), 6).stopped(StopReason::Length)),
    ("chat-tool", told(919, Some(896), 488).stopped(StopReason::ToolCalls).with_tool_call()),
    ("chat-named-tool", told(919, Some(896), 113).stopped(StopReason::Stop).with_tool_call()),
    ("completions", told(801, Some(768), 4).stopped(StopReason::Length)),
    ("completions-without-details", told(801, None, 4).stopped(StopReason::Length)),
    ("messages", told(723, Some(0), 4).stopped(StopReason::Length)),
    ("messages-without-details", told(811, None, 4).stopped(StopReason::Length)),
    ("messages-tool", told(919, Some(896), 134).stopped(StopReason::ToolCalls).with_tool_call()),
    ("responses-tool-cut-off", told(919, Some(896), 1000).stopped(StopReason::Length).with_tool_call()),
    ("count-tokens", ENDED),
    ("error-404-anthropic", ENDED.with_error()),
    ("error-404-openai", ENDED.with_error()),
    ("chat-stream", ENDED.events(4).stopped(StopReason::Length)),
    ("chat-stream-usage", told(740, Some(640), 4).events(4).stopped(StopReason::Length)),
    ("chat-stream-usage-without-details", told(811, None, 4).events(4).stopped(StopReason::Length)),
    ("chat-stream-continuous-usage", told(740, Some(640), 4).events(4).stopped(StopReason::Length)),
    ("chat-stream-engine-keepalive", told(24_221, Some(0), 2).events(1).stopped(StopReason::Length)),
    ("chat-reasoning-stream", told(811, Some(0), 4).events(4).stopped(StopReason::Length)),
    ("chat-two-choices-stream", told(811, Some(768), 6).events(6).stopped(StopReason::Length)),
    ("chat-tool-stream", told(919, Some(896), 637).events(3).stopped(StopReason::ToolCalls).with_tool_call()),
    ("chat-named-tool-stream", told(919, Some(0), 114).events(36).stopped(StopReason::Stop).with_tool_call()),
    ("completions-stream-usage", told(499, Some(0), 4).events(4).stopped(StopReason::Length)),
    ("messages-stream", told(723, Some(640), 4).events(4).stopped(StopReason::Length)),
    ("messages-stream-without-details", told(811, None, 4).events(4).stopped(StopReason::Length)),
    ("messages-thinking-stream", told(811, Some(768), 1030).events(4).stopped(StopReason::Length)),
    ("messages-tool-stream", told(919, Some(896), 181).events(41).stopped(StopReason::ToolCalls).with_tool_call()),
    ("messages-tool-stream-cut-off", told(916, Some(896), 60).events(4).stopped(StopReason::Length).with_tool_call()),
    ("responses-stream", told(536, Some(0), 4).events(2).stopped(StopReason::Length)),
    ("responses-reasoning-stream", told(811, Some(768), 6).events(6).stopped(StopReason::Length)),
    ("responses-tool-stream", told(919, Some(896), 458).events(2).stopped(StopReason::Stop).with_tool_call()),
    ("error-503-in-stream", ENDED.with_error()),
    ("killed-chat-stream", ENDED.events(3).with_error()),
    ("killed-messages-stream", Report { has_ended: false, ..told(9, None, 0).events(3).with_error() }),
];

const NOTHING: Report = Report {
    usage: None,
    content_events: 0,
    has_tool_call: false,
    stop_reason: None,
    has_ended: false,
    has_error: false,
};

const ENDED: Report = Report { has_ended: true, ..NOTHING };

/// Of an answer that has ended.
const fn told(prompt: u64, cached: Option<u64>, completion: u64) -> Report {
    Report { usage: Some(Usage { prompt, cached, completion }), ..ENDED }
}

impl Report {
    const fn events(self, content_events: u64) -> Self {
        Report { content_events, ..self }
    }

    const fn stopped(self, reason: StopReason) -> Self {
        Report { stop_reason: Some(reason), ..self }
    }

    const fn with_tool_call(self) -> Self {
        Report { has_tool_call: true, ..self }
    }

    const fn with_error(self) -> Self {
        Report { has_error: true, ..self }
    }
}

/// An answer, and whether it is a stream.
#[expect(clippy::disallowed_methods, reason = "the answers are files")]
fn recorded(name: &str) -> (Vec<u8>, bool) {
    let path = format!("{}/tests/wire/answers/{name}.http", env!("CARGO_MANIFEST_DIR"));
    let raw = std::fs::read(path).expect(name);
    let head_end = memchr::memmem::find(&raw, b"\r\n\r\n").expect("a head") + 4;
    let is_stream = memchr::memmem::find(&raw[..head_end], b"text/event-stream").is_some();
    (raw[head_end..].to_vec(), is_stream)
}

fn new(is_stream: bool) -> Observer {
    if is_stream { Observer::of_stream() } else { Observer::of_document() }
}

fn report<'a>(mut observer: Observer, chunks: impl IntoIterator<Item = &'a [u8]>) -> Report {
    let content_events: u64 = chunks.into_iter().map(|chunk| observer.observe(chunk)).sum();
    let report = observer.report();
    assert_eq!(report.content_events, content_events, "what was said of the chunks adds up");
    report
}

fn document(body: &str) -> Report {
    report(Observer::of_document(), [body.as_bytes()])
}

fn stream(body: &str) -> Report {
    report(Observer::of_stream(), [body.as_bytes()])
}

/// One event of such data.
fn event(data: &str) -> Report {
    stream(&format!("data: {data}\n\n"))
}

fn usage(body: &str) -> Option<Usage> {
    let usage = document(body).usage;
    assert_eq!(event(body).usage, usage, "in an event: {body}");
    usage
}

#[test]
fn a_recorded_answer_is_reported_as_it_was() {
    for (name, expected) in RECORDED {
        let (body, is_stream) = recorded(name);
        assert_eq!(report(new(is_stream), [&body[..]]), expected, "{name}");
        let reference = if is_stream { reference::of_stream(&body) } else { reference::of_document(&body) };
        assert_eq!(reference, Some(expected), "the reference on {name}");
    }
    let there = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire/answers")).expect("the answers");
    assert_eq!(there.count(), RECORDED.len(), "every recorded answer is expected to be something");
}

#[test]
fn no_cut_of_a_recorded_answer_changes_its_report() {
    for (name, expected) in RECORDED {
        let (body, is_stream) = recorded(name);
        for size in 1..=64 {
            assert_eq!(report(new(is_stream), body.chunks(size)), expected, "{name} in chunks of {size}");
        }
        // At every byte, but in the few long ones.
        for at in (0..body.len()).step_by(body.len().div_ceil(2_000)) {
            let (before, after) = body.split_at(at);
            assert_eq!(report(new(is_stream), [before, after]), expected, "{name} cut at {at}");
        }
    }
}

#[test]
fn line_ends_marks_and_spaces_that_the_standard_allows_change_nothing() {
    for (name, expected) in RECORDED {
        let (body, true) = recorded(name) else { continue };
        let body = String::from_utf8(body).expect("text");
        for written in [
            body.replace('\n', "\r\n"),
            body.replace('\n', "\r"),
            body.replace("data: ", "data:").replace("event: ", "event:"),
            body.replace("data: ", ": a comment\nid: 7\ndata: "),
            body.replace(",\"", "\ndata: ,\ndata: \""),
            format!("\u{feff}{body}"),
        ] {
            for size in [1, 7, usize::MAX] {
                assert_eq!(
                    report(Observer::of_stream(), written.as_bytes().chunks(size)),
                    expected,
                    "{name}: {written}"
                );
            }
        }
    }
}

#[test]
fn the_first_token_is_in_the_first_chunk_that_carries_something_generated() {
    for (name, at) in [
        // Behind the role.
        ("chat-stream", 1),
        ("chat-tool-stream", 1),
        ("chat-reasoning-stream", 1),
        ("chat-two-choices-stream", 2),
        // Behind ten comments, too.
        ("chat-stream-engine-keepalive", 11),
        ("completions-stream-usage", 0),
        // Behind the start of the message and of the block.
        ("messages-stream", 2),
        ("messages-thinking-stream", 2),
        ("messages-tool-stream", 2),
        // Behind what announces the response, its item and its part.
        ("responses-stream", 4),
        ("responses-tool-stream", 3),
    ] {
        let (body, _) = recorded(name);
        let body = String::from_utf8(body).expect("text");
        let mut observer = Observer::of_stream();
        let first = body.split_inclusive("\n\n").position(|event| observer.observe(event.as_bytes()) > 0);
        assert_eq!(first, Some(at), "{name}");
    }
}

#[test]
fn an_event_counts_once_its_empty_line_has_come() {
    let mut observer = Observer::of_stream();
    assert_eq!(observer.observe(b"data: {\"choices\":[{\"text\":\"a\"}],\"usage\":{\"prompt_tokens\":1}}\n"), 0);
    assert_eq!(observer.report(), NOTHING);
    assert_eq!(observer.observe(b"\ndata: {\"delta\":\"b\"}\n\ndata: {\"delta\":\"c\"}\n\n"), 3);
    assert_eq!(observer.report().usage.map(|usage| usage.prompt), Some(1));
}

#[test]
fn what_a_dialect_calls_a_token_is_one() {
    for (data, is_one) in [
        (r#"{"choices":[{"delta":{"content":"a"}}]}"#, true),
        (r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#, false),
        (r#"{"choices":[{"delta":{"role":"assistant","content":null}}]}"#, false),
        (r#"{"choices":[{"delta":{"reasoning":"a"}}]}"#, true),
        (r#"{"choices":[{"delta":{"reasoning_content":"a"}}]}"#, true),
        (r#"{"choices":[{"delta":{"refusal":"a"}}]}"#, true),
        (r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#, true),
        (r#"{"choices":[{"delta":{"tool_calls":[ ]}}]}"#, false),
        (r#"{"choices":[{"delta":{"tool_calls":null}}]}"#, false),
        (r#"{"choices":[{"delta":{"function_call":{"arguments":"a"}}}]}"#, true),
        (r#"{"choices":[{"delta":{}},{"delta":{"content":"\""}}]}"#, true),
        (r#"{"choices":[{"text":" "}]}"#, true),
        (r#"{"choices":[{"text":""}]}"#, false),
        (r#"{"choices":[],"usage":{"prompt_tokens":1}}"#, false),
        (r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#, true),
        (r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"a"}}"#, true),
        (r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}"#, true),
        (r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":""}}"#, false),
        (r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"a"}}"#, false),
        (r#"{"type":"content_block_start","content_block":{"type":"text","text":""}}"#, false),
        (r#"{"type":"message_start","message":{"content":[],"usage":{"input_tokens":1}}}"#, false),
        (r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#, false),
        (r#"{"type":"ping"}"#, false),
        (r#"{"type":"response.output_text.delta","delta":"a"}"#, true),
        (r#"{"delta":"a","type":"response.reasoning_text.delta"}"#, true),
        (r#"{"delta":"","type":"response.function_call_arguments.delta"}"#, false),
        (r#"{"type":"response.output_item.added","item":{"type":"message","content":[]}}"#, false),
        (r#"{"type":"response.output_text.done","text":"a","delta":"a"}"#, false),
    ] {
        assert_eq!(event(data).content_events, u64::from(is_one), "{data}");
    }
}

#[test]
fn usage_is_read_as_each_kind_of_server_writes_it() {
    let all = |prompt, cached, completion| Some(Usage { prompt, cached, completion });
    for (body, expected) in [
        // Details that are absent, null or null inside.
        (r#"{"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}"#, all(7, None, 2)),
        (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":null}}"#, all(7, None, 2)),
        (
            r#"{"usage":{"prompt_tokens_details":{"cached_tokens":null},"completion_tokens":2,"prompt_tokens":7}}"#,
            all(7, None, 2),
        ),
        (r#"{"usage":null}"#, None),
        (r#"{"usage":{}}"#, None),
        // Embeddings generate nothing.
        (r#"{"usage":{"prompt_tokens":7,"total_tokens":7}}"#, all(7, None, 0)),
        (r#"{"usage":{"prompt_tokens":7,"completion_tokens":null}}"#, all(7, None, 0)),
        // OpenAI's, with details of other kinds beside.
        (
            r#"{"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"audio_tokens":1,"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":1,"cached_tokens":3}}}"#,
            all(7, Some(4), 2),
        ),
        (
            r#"{"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":4},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":1},"total_tokens":9}}"#,
            all(7, Some(4), 2),
        ),
        // Anthropic's: the parts of the prompt are told apart.
        (
            r#"{"usage":{"input_tokens":7,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":20,"input_tokens":3},"output_tokens":2,"service_tier":"standard"}}"#,
            all(127, Some(100), 2),
        ),
        (r#"{"usage":{"input_tokens":7,"output_tokens":2,"cache_read_input_tokens":null}}"#, all(7, None, 2)),
        // Gateways that write both: the first is the whole.
        (
            r#"{"usage":{"prompt_tokens":127,"input_tokens":7,"cache_read_input_tokens":100,"completion_tokens":2}}"#,
            all(127, Some(100), 2),
        ),
        // More in the cache than there was.
        (r#"{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":8}}}"#, all(7, None, 0)),
        (r#"{"response":{"usage":{"input_tokens":7,"output_tokens":2}}}"#, all(7, None, 2)),
        (r#"{"message":{"usage":{"input_tokens":7,"output_tokens":2}}}"#, all(7, None, 2)),
    ] {
        assert_eq!(usage(body), expected, "{body}");
    }
}

#[test]
fn of_events_that_tell_usage_each_figure_is_the_last_that_was_told() {
    let all = |prompt, cached, completion| Some(Usage { prompt, cached, completion });
    for (events, expected) in [
        // As Anthropic has it: the prompt in the first event, the completion in the last.
        (
            &[
                r#"{"type":"message_start","message":{"usage":{"input_tokens":7,"cache_read_input_tokens":100,"cache_creation_input_tokens":20,"output_tokens":1}}}"#,
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}"#,
            ][..],
            all(127, Some(100), 9),
        ),
        // A server that knows the prompt only in the end.
        (
            &[
                r#"{"type":"message_start","message":{"usage":{"input_tokens":0,"output_tokens":0}}}"#,
                r#"{"type":"message_delta","usage":{"input_tokens":7,"output_tokens":9}}"#,
            ],
            all(7, None, 9),
        ),
        (&[r#"{"usage":{"prompt_tokens":7,"completion_tokens":1}}"#, r#"{"usage":null}"#], all(7, None, 1)),
        (&[r#"{"usage":null}"#, r#"{"usage":{"prompt_tokens":7,"completion_tokens":1}}"#], all(7, None, 1)),
        (
            &[
                r#"{"usage":{"prompt_tokens":7}}"#,
                r#"{"type":"response.created","response":{"usage":{"input_tokens":1}}}"#,
            ],
            all(7, None, 0),
        ),
        (&[r#"{"usage":{"prompt_tokens":7}}"#, r#"{"usage":{"prompt_tokens":8}"#], all(7, None, 0)),
    ] {
        let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        assert_eq!(stream(&body).usage, expected, "{body}");
    }
}

#[test]
fn text_that_looks_like_usage_is_text() {
    for body in [
        r#"{"choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":1}"}}]}"#,
        r#"{"choices":[{"message":{"content":"\\\",\"usage\":{\"prompt_tokens\":1}"}}]}"#,
        r#"{"choices":[{"message":{"content":"\\"}}],"a":"usage","b":"{\"usage\":{\"prompt_tokens\":1}}"}"#,
        r#"{"content":[{"type":"tool_use","input":{"usage":{"prompt_tokens":1,"input_tokens":1},"type":"error"}}]}"#,
        r#"{"choices":[{"usage":{"prompt_tokens":1}}],"output":[{"usage":{"input_tokens":1}}]}"#,
        r#"{"a":{"usage":{"prompt_tokens":1}},"response":[{"usage":{"input_tokens":1}}]}"#,
        r#"{"response":{"response":{"usage":{"input_tokens":1}}},"message":"usage"}"#,
        r#"{"usage":[{"prompt_tokens":1}],"prompt_tokens":1,"Usage":{"prompt_tokens":1}}"#,
        r#"{"usage":{"usage":{"prompt_tokens":1},"prompt_tokens_details":{"prompt_tokens":1}}}"#,
        r#"{"delta":{"usage":{"prompt_tokens":1}},"item":{"usage":{"input_tokens":1}}}"#,
        r#"[{"usage":{"prompt_tokens":1}}]"#,
        r#""usage":{"prompt_tokens":1}"#,
    ] {
        assert_eq!(usage(body), None, "{body}");
        assert!(!document(body).has_error, "{body}");
    }
    let seen = stream(
        "data: {\"choices\":[{\"text\":\"\\n\\ndata: [DONE]\\n\\n\"}]}\n\n: data: [DONE]\n\nx\ndata : [DONE]\n\n",
    );
    assert_eq!(seen, NOTHING.events(1));
}

#[test]
fn keys_are_known_however_they_are_written() {
    let expected = Some(Usage { prompt: 7, cached: Some(5), completion: 3 });
    for body in [
        "{ \"usage\" :\r\n\t{ \"prompt_tokens\" : 7 , \"completion_tokens\":3 ,\"prompt_tokens_details\":{\"cached_tokens\":5 } } }",
        r#"{"us\u0061ge":{"\u0070rompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached\u005ftokens":5}}}"#,
        "\u{feff}{\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":5}}}",
    ] {
        assert_eq!(document(body).usage, expected, "{body}");
    }
}

#[test]
fn half_a_mark_is_none_and_lines_of_data_are_not_joined_without_their_break() {
    assert_eq!(report(Observer::of_stream(), [&b"\xEF\xBBdata: [DONE]\n\n"[..]]), NOTHING);
    assert_eq!(report(Observer::of_document(), [&b"\xEF\xBB"[..], b"{}"]), NOTHING);
    assert_eq!(stream("data: {\"usage\":{\"prompt_tokens\":1\ndata: 2}}\n\n"), NOTHING);
}

#[test]
fn of_a_figure_that_stands_twice_the_last_counts() {
    let prompt = |body: &str| usage(body).map(|usage| (usage.prompt, usage.cached));
    for (body, expected) in [
        (r#"{"usage":{"prompt_tokens":1,"prompt_tokens":2}}"#, Some((2, None))),
        (r#"{"usage":{"prompt_tokens":1,"prompt_tokens":"2"}}"#, None),
        (r#"{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":2}}"#, Some((2, None))),
        (r#"{"usage":{"prompt_tokens":1},"usage":null}"#, None),
        (
            r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":1},"prompt_tokens_details":{}}}"#,
            Some((9, None)),
        ),
        (
            r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":1,"cached_tokens":2}}}"#,
            Some((9, Some(2))),
        ),
    ] {
        assert_eq!(prompt(body), expected, "{body}");
    }
}

#[test]
fn a_count_that_no_turn_can_have_is_none() {
    for count in [
        "-1",
        "-0",
        "1.0",
        "1e3",
        "1e30",
        "\"7\"",
        "null",
        "true",
        "[7]",
        "{}",
        "4294967296",
        "99999999999999999999999999",
    ] {
        assert_eq!(
            usage(&format!(r#"{{"usage":{{"prompt_tokens":{count},"completion_tokens":2}}}}"#)),
            None,
            "{count}"
        );
    }
    let most = u64::from(u32::MAX);
    let body = format!(
        r#"{{"usage":{{"input_tokens":{most},"cache_read_input_tokens":{most},"cache_creation_input_tokens":{most},"output_tokens":0}}}}"#
    );
    assert_eq!(usage(&body), Some(Usage { prompt: 3 * most, cached: Some(most), completion: 0 }));
}

#[test]
fn a_reason_to_stop_is_known_by_any_of_its_words() {
    for (body, expected) in [
        (r#"{"choices":[{"finish_reason":"stop","stop_reason":"</s>"}]}"#, Some(StopReason::Stop)),
        (r#"{"choices":[{"finish_reason":"length"}]}"#, Some(StopReason::Length)),
        (r#"{"choices":[{"finish_reason":"tool_calls"}]}"#, Some(StopReason::ToolCalls)),
        (r#"{"choices":[{"finish_reason":"content_filter"}]}"#, Some(StopReason::Refusal)),
        (r#"{"choices":[{"finish_reason":"abort"}]}"#, Some(StopReason::Abort)),
        (r#"{"choices":[{"finish_reason":"error"}]}"#, Some(StopReason::Error)),
        (r#"{"choices":[{"finish_reason":"repetition"}]}"#, Some(StopReason::Repetition)),
        (r#"{"choices":[{"finish_reason":"eos"}]}"#, Some(StopReason::Other)),
        (r#"{"choices":[{"finish_reason":"stop"},{"finish_reason":"length"}]}"#, Some(StopReason::Length)),
        (r#"{"choices":[{"finish_reason":null,"stop_reason":"stop"}]}"#, None),
        (r#"{"choices":[{"finish_reason":""}]}"#, None),
        (r#"{"stop_reason":"end_turn","stop_sequence":null}"#, Some(StopReason::Stop)),
        (r#"{"delta":{"stop_reason":"max_tokens"}}"#, Some(StopReason::Length)),
        (r#"{"delta":{"stop_reason":"stop_sequence"}}"#, Some(StopReason::Stop)),
        (r#"{"delta":{"stop_reason":"tool_use"}}"#, Some(StopReason::ToolCalls)),
        (r#"{"delta":{"stop_reason":"pause_turn"}}"#, Some(StopReason::Pause)),
        (r#"{"delta":{"stop_reason":"refusal"}}"#, Some(StopReason::Refusal)),
        (r#"{"message":{"stop_reason":null}}"#, None),
        (r#"{"status":"completed","incomplete_details":null}"#, Some(StopReason::Stop)),
        (r#"{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}"#, Some(StopReason::Length)),
        (
            r#"{"response":{"incomplete_details":{"reason":"content_filter"},"status":"incomplete"}}"#,
            Some(StopReason::Refusal),
        ),
        (r#"{"response":{"status":"incomplete"}}"#, Some(StopReason::Other)),
        (r#"{"response":{"status":"failed"}}"#, Some(StopReason::Error)),
        (r#"{"status":"cancelled"}"#, Some(StopReason::Abort)),
        (r#"{"status":"in_progress"}"#, None),
        (r#"{"status":404}"#, None),
    ] {
        assert_eq!(document(body).stop_reason, expected, "{body}");
    }
    let later = stream(
        "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[{\"finish_reason\":null}]}\n\n",
    );
    assert_eq!(later.stop_reason, Some(StopReason::Stop));
}

#[test]
fn a_call_is_one_that_the_client_has_to_answer() {
    for (body, calls) in [
        (r#"{"choices":[{"message":{"tool_calls":[{"id":"a"}]},"finish_reason":"stop"}]}"#, true),
        (r#"{"choices":[{"message":{"tool_calls":[]}}]}"#, false),
        (r#"{"choices":[{"message":{"function_call":{"name":"f"}}}]}"#, true),
        (r#"{"choices":[{"message":{"function_call":null}}]}"#, false),
        (r#"{"content":[{"type":"text"},{"input":{},"type":"tool_use"}]}"#, true),
        (r#"{"content":[{"type":"server_tool_use"},{"type":"text","text":"tool_use"}]}"#, false),
        (r#"{"content_block":{"type":"tool_use"}}"#, true),
        (r#"{"item":{"type":"custom_tool_call"}}"#, true),
        (r#"{"item":{"type":"web_search_call"}}"#, false),
        (r#"{"output":[{"type":"reasoning"},{"arguments":"{}","type":"function_call"}]}"#, true),
        (r#"{"response":{"output":[{"type":"local_shell_call"}]}}"#, true),
        (r#"{"response":{"output":[{"content":[{"type":"function_call"}],"type":"message"}]}}"#, false),
    ] {
        assert_eq!(document(body).has_tool_call, calls, "{body}");
        assert_eq!(event(body).has_tool_call, calls, "in an event: {body}");
    }
}

#[test]
fn the_end_and_an_error_are_told_by_each_dialects_own_events() {
    for (body, has_ended, has_error) in [
        ("data: [DONE]\n\n", true, false),
        ("data:[DONE]\r\n\r\n", true, false),
        ("data: [DONE]\n", false, false),
        ("data: [DONE\n\n", false, false),
        ("data: {\"a\":\"[DONE]\"}\n\n", false, false),
        ("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true, false),
        ("data: {\"type\":\"message_stop\"}\n\n", true, false),
        ("event: message_stop\n\n", false, false),
        ("event: message\ndata: {\"type\":\"message_stop\"}\n\n", true, false),
        ("data: {}\nevent: response.completed\n\n", true, false),
        ("event: response.incomplete\ndata: {}\n\n", true, false),
        ("event: response.failed\ndata: {\"response\":{\"status\":\"failed\"}}\n\n", true, true),
        ("event: response.created\ndata: {\"type\":\"response.completed\"}\n\n", false, false),
        ("event: error\ndata: {\"type\":\"error\",\"code\":\"a\"}\n\n", false, true),
        ("event: error\ndata: not json\n\n", false, true),
        ("event: error\r\ndata: not json\r\n\r\n", false, true),
        ("event: error\rdata: not json\r\r", false, true),
        ("data: {\"type\":\"error\",\"error\":{}}\n\n", false, true),
        ("data: {\"error\": {\"message\": \"busy\", \"code\": 503}}\n\ndata: [DONE]\n\n", true, true),
        ("data: {\"error\": \"Unauthorized\"}\n\n", false, true),
        ("data: {\"error\": null}\n\n", false, false),
        ("data: {\"object\": \"error\", \"message\": \"busy\"}\n\n", false, true),
        ("data: {\"response\":{\"error\":{\"code\":\"a\"}}}\n\n", false, true),
        ("data: {\"choices\":[{\"error\":{}}]}\n\n", false, false),
    ] {
        let report = stream(body);
        assert_eq!((report.has_ended, report.has_error), (has_ended, has_error), "{body}");
    }
    assert_eq!(document(r#"{"usage":{"prompt_tokens":1}"#), NOTHING, "a document that broke off");
    assert_eq!(document(r#"{"type":"error","message":"a"}"#), ENDED.with_error());
    assert_eq!(document("data: [DONE]\n\n"), NOTHING, "not a document");
}

#[test]
fn an_event_that_cannot_be_read_tells_nothing_and_the_next_one_does() {
    for broken in ["{\"usage\":{\"prompt_tokens\":1}", "{\"usage\":{\"prompt_tokens\":1]}", "}"] {
        assert_eq!(event(broken), NOTHING, "{broken}");
        let report = stream(&format!("data: {broken}\n\ndata: {{\"usage\":{{\"prompt_tokens\":2}}}}\n\n"));
        assert_eq!(report.usage.map(|usage| usage.prompt), Some(2), "{broken}");
    }
}

#[test]
fn depth_and_length_take_no_memory() {
    let deep = "[".repeat(1_000_000);
    let long = "\\\"usage\\\":{\\\"prompt_tokens\\\":1},".repeat(100_000);
    let closing = "]".repeat(1_000_000);
    let body = format!(r#"{{"output":{deep}"{long}"{closing},"content":"{long}","usage":{{"prompt_tokens":7}}}}"#);
    for size in [4_096, 65_536] {
        let report = report(Observer::of_document(), body.as_bytes().chunks(size));
        assert_eq!(report.usage.map(|usage| usage.prompt), Some(7));
    }
    // Whatever comes, it stays within this: nothing in it points elsewhere.
    assert!(size_of::<Observer>() <= 1024, "{}", size_of::<Observer>());
}
