//! The fingerprint of a conversation without an id: a chain of hashes over its messages.
//!
//! An agent sends its whole history every turn, but not in the same bytes: a marker of the cache moves on, a block of
//! text becomes a string. What is hashed is therefore the canonical value:
//!
//! 1. The messages are `messages`, or `input` of the Responses API, where a string is one message of the user. Each
//!    extends the chain by its hash. The system prompt (`system`, or `instructions`) stands behind the messages in some
//!    bodies and is hashed apart.
//! 2. Of an object the members count in any order, of an array the items in theirs. Strings count by what they decode
//!    to, everything else as it is written. What is nested more than 24 deep counts by its bytes.
//! 3. `cache_control` counts nowhere.
//! 4. A string as `content` or as system prompt is a list with one block of text. `text`, `input_text` and `output_text`
//!    are one type.
//! 5. A block of the system prompt that begins with `x-anthropic-billing-header` does not count: it differs between
//!    conversations, and vLLM takes it out.
//! 6. In the first message of the user, a text that is injected (`<system-reminder>` and its like) does not count where
//!    other text follows in that message, and neither does the part of a text before the user's own words. It is equal in
//!    different conversations and changes within one.
//!
//! A chain has a step for each message from the user's first on: what stands before it is no conversation yet.

use std::fmt;

use super::digest::{self, NO_ITEMS, mix};

/// Steps that are kept, the latest. The longest sessions that agents report have some hundred turns of two or three messages;
/// a conversation is found again by its last steps.
const STEPS: usize = 4096;

/// What the chain begins with.
const NO_MESSAGES: u64 = digest::text(b"messages");

/// What a whole body says of its conversation's past, as hashes only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Over the canonical text of the system prompt.
    pub(super) system: u64,
    /// One for each message from the first of the user on, each over all messages up to it. Of more than 4096 the last.
    pub(super) steps: Vec<Step>,
    /// Whether there is a message of the assistant or the result of a call: the conversation did not begin with this turn.
    pub(super) is_continued: bool,
    /// The index of the assistant's last message in `steps`. What is behind it is what this turn asks.
    pub(super) last_answer: Option<usize>,
}

impl Default for History {
    /// Without a system prompt, which is as good as an empty one.
    fn default() -> Self {
        Self { system: digest::array(NO_ITEMS), steps: Vec::new(), is_continued: false, last_answer: None }
    }
}

/// The messages up to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) hash: u64,
    /// Bytes of canonical text so far, without the system prompt: all strings but ids, types and what is no text, such as
    /// pictures.
    pub(super) text_bytes: u32,
}

/// Names the messages up to one of them, under one API key and one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainKey(pub u64);

/// One step of a [`Chain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub key: ChainKey,
    /// Bytes of canonical text up to here, without the system prompt.
    pub text_bytes: u32,
}

/// The history of a turn, keyed: the last link stands for the whole, those before it for what earlier turns of the
/// same conversation sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// From the first message of the user on.
    pub links: Vec<Link>,
    /// Whether the conversation did not begin with this turn.
    pub is_continued: bool,
    /// The index of the link of the assistant's last message. The messages behind it are what this turn asks; a client may
    /// word the newest one anew in the next turn, and sends those up to here again as they are.
    pub last_answer: Option<usize>,
}

impl History {
    pub(super) fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }
}

impl fmt::Display for ChainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaker {
    User,
    Assistant,
    Other,
}

/// What a message says beside its hash.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    speaker: Option<Speaker>,
    /// An item of the Responses API that only an assistant makes.
    is_of_assistant: bool,
    /// The result of what such an item asked for.
    is_result: bool,
    pub(super) bytes: u64,
    /// Bytes that do not count in the user's first message.
    pub(super) left_out: u64,
}

impl Said {
    /// Of several roles the first counts.
    pub(super) fn note_role(&mut self, role: &[u8]) {
        self.speaker.get_or_insert(match role {
            b"user" => Speaker::User,
            b"assistant" => Speaker::Assistant,
            _ => Speaker::Other,
        });
    }

    /// Calls of tools have types such as `function_call`, their results such as `function_call_output`.
    pub(super) fn note_type(&mut self, item: &[u8]) {
        self.is_of_assistant |= item == b"reasoning" || item.ends_with(b"_call");
        self.is_result |= item.ends_with(b"_call_output");
    }

    fn is_answer(&self) -> bool {
        self.is_of_assistant || self.speaker == Some(Speaker::Assistant)
    }

    pub(super) fn is_first_of_user(&self, before: &Messages) -> bool {
        before.awaits_user() && self.speaker == Some(Speaker::User)
    }
}

/// The messages so far.
#[derive(Clone, Debug)]
pub(super) struct Messages {
    chain: u64,
    text_bytes: u64,
    user_spoke: bool,
    history: History,
}

impl Default for Messages {
    fn default() -> Self {
        Self { chain: NO_MESSAGES, text_bytes: 0, user_spoke: false, history: History::default() }
    }
}

impl Messages {
    pub(super) fn awaits_user(&self) -> bool {
        !self.user_spoke
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    pub(super) fn note_system(&mut self, hash: u64) {
        self.history.system = hash;
    }

    /// The next message, by its hash.
    pub(super) fn add(&mut self, hash: u64, said: &Said) {
        let left_out = if said.is_first_of_user(self) { said.left_out } else { 0 };
        self.chain = mix(self.chain, hash);
        self.text_bytes += said.bytes - left_out;
        self.user_spoke |= said.speaker == Some(Speaker::User);
        self.history.is_continued |= said.is_answer() || said.is_result;
        if self.user_spoke {
            if said.is_answer() {
                self.history.last_answer = Some(self.history.steps.len());
            }
            let text_bytes = u32::try_from(self.text_bytes).unwrap_or(u32::MAX);
            self.history.steps.push(Step { hash: self.chain, text_bytes });
            // Cut by as many as are kept, so that a step is moved once at most.
            if self.history.steps.len() == 2 * STEPS {
                self.drop_first(STEPS);
            }
        }
    }

    /// There are no more messages.
    pub(super) fn end(&mut self) {
        self.drop_first(self.history.steps.len().saturating_sub(STEPS));
    }

    fn drop_first(&mut self, count: usize) {
        self.history.steps.drain(..count);
        self.history.last_answer = self.history.last_answer.and_then(|index| index.checked_sub(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Progress, Scanner, Wanted};

    fn scan(body: &str) -> Option<History> {
        let mut scanner = Scanner::new(Wanted::ModelAndSession);
        scanner.feed(body.as_bytes());
        scanner.history().cloned()
    }

    /// The history of a body with these messages.
    fn of(messages: &str) -> History {
        scan(&format!(r#"{{"model":"m","messages":[{messages}]}}"#)).expect(messages)
    }

    fn user(content: &str) -> String {
        format!(r#"{{"role":"user","content":{content}}}"#)
    }

    fn text(text: &str) -> String {
        format!(r#"{{"type":"text","text":"{text}"}}"#)
    }

    fn hashes(history: &History) -> Vec<u64> {
        history.steps.iter().map(|step| step.hash).collect()
    }

    fn bytes(history: &History) -> Vec<u32> {
        history.steps.iter().map(|step| step.text_bytes).collect()
    }

    #[test]
    fn what_means_the_same_is_the_same() {
        let block = |rest: &str| format!(r#"{{"role":"user","content":[{{"type":"text","text":"a"{rest}}}]}}"#);
        for (one, other) in [
            (user(r#""a""#), user(&format!("[{}]", text("a")))),
            (user(r#""a""#), r#" { "content" : "a" , "role" : "user" } "#.to_owned()),
            (user(r#""a\u00e9\ud83d\ude00\n\/""#), user(r#""\u0061é😀\u000a/""#)),
            (block(""), block(r#","cache_control":{"type":"ephemeral"}"#)),
            (block(""), block(r#","cache_control":null,"cache_control":["a",{"b":1}]"#)),
            (user(r#""a""#), r#"{"role":"user","cache_control":1,"content":"a"}"#.to_owned()),
            (user(r#"[{"type":"input_text","text":"a"}]"#), user(r#"[{"text":"a","type":"output_text"}]"#)),
            (
                user(r#"[{"type":"tool_result","tool_use_id":"t","content":"a"}]"#),
                user(
                    r#"[{"content":[{"text":"a","type":"text","cache_control":{}}],"tool_use_id":"t","type":"tool_result"}]"#,
                ),
            ),
            (user(r#"[{"a":{"b":1,"c":[true,null]}}]"#), user(r#"[{"a":{"c":[ true, null ],"b":1}}]"#)),
        ] {
            assert_eq!(of(&one), of(&other), "{one} and {other}");
            let later = |message: &str| of(&format!("{},{message}", user(r#""first""#)));
            assert_eq!(later(&one), later(&other), "{one} and {other}, behind another message");
        }
    }

    #[test]
    fn what_means_something_else_is_something_else() {
        let contents = [
            r#""a""#,
            r#""b""#,
            r#""""#,
            "1",
            "1.0",
            "null",
            r#"["a"]"#,
            r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#,
            r#"[{"type":"text","text":"b"},{"type":"text","text":"a"}]"#,
            r#"[{"type":"text","text":"a","text":"a"}]"#,
            r#"[{"type":"thinking","text":"a"}]"#,
            r#"[{"type":"image","source":{"data":"a"}}]"#,
            r#"[{"type":"image","source":{"data":"b"}}]"#,
            r#"[["a"]]"#,
            r#"[{"a":{"b":1}}]"#,
            r#"[{"a":[{"b":1}]}]"#,
            r#"[{"cache":1}]"#,
            r#""\ud83d""#,
            r#""\ud83e""#,
            r#""\ud83d\ud83d""#,
            r#""\x""#,
            r#""x""#,
        ];
        let mut steps: Vec<_> = contents.iter().flat_map(|content| hashes(&of(&user(content)))).collect();
        steps.sort_unstable();
        steps.dedup();
        assert_eq!(steps.len(), contents.len());
        let assistant = of(&format!(r#"{},{{"role":"assistant","content":"a"}}"#, user(r#""a""#)));
        let twice = of(&format!("{},{}", user(r#""a""#), user(r#""a""#)));
        assert_ne!(assistant.steps[1].hash, twice.steps[1].hash);
    }

    #[test]
    fn conversations_that_begin_with_the_same_preamble_are_told_apart() {
        let preamble = format!("<system-reminder>{}</system-reminder>", "the same for all of a project ".repeat(40));
        assert!(preamble.len() > 1100);
        let blocks = |words: &str| of(&user(&format!("[{},{}]", text(&preamble), text(words))));
        let string = |words: &str| of(&user(&format!("\"{preamble}\\n\\n{words}\"")));
        assert_ne!(hashes(&blocks("fix the parser")), hashes(&blocks("fix the printer")));
        assert_ne!(hashes(&string("fix the parser")), hashes(&string("fix the printer")));
        let bare = of(&user(r#""fix the parser""#));
        assert_eq!(blocks("fix the parser"), bare);
        assert_eq!(string("fix the parser"), bare);
        assert_eq!(bytes(&bare), [14]);
    }

    #[test]
    fn a_preamble_that_changes_between_turns_changes_nothing() {
        let preambles = [
            "<system-reminder>a</system-reminder>",
            "<environment_context>\\n</environment_context>\\n <user_instructions>b</user_instructions>",
        ];
        for said in ["words", "<task>words</task>", "words <system-reminder>kept</system-reminder>"] {
            let bare = of(&user(&format!("\"{said}\"")));
            for preamble in preambles {
                let texts = [
                    format!("[{},{}]", text(preamble), text(said)),
                    format!("[{},{},{}]", text(preamble), text(preamble), text(said)),
                    format!("[{},{}]", text(preamble), text(&format!("{preamble}\\n{said}"))),
                    format!("\"{preamble}{preamble} {said}\""),
                ];
                for content in texts {
                    assert_eq!(of(&user(&content)), bare, "{content}");
                    let late = format!(r#"{{"content":{content},"role":"user"}}"#);
                    assert_eq!(of(&late), bare, "{late}");
                }
            }
        }
    }

    #[test]
    fn a_preamble_counts_where_nothing_of_the_user_follows() {
        let reminder = |said: &str| text(&format!("<system-reminder>{said}</system-reminder>\\n"));
        let differs = |one: &str, other: &str| assert_ne!(hashes(&of(one)), hashes(&of(other)), "{one} and {other}");
        differs(&user(&format!("[{}]", reminder("a"))), &user(&format!("[{}]", reminder("b"))));
        differs(
            &user(&format!("[{},{}]", text("x"), reminder("a"))),
            &user(&format!("[{},{}]", text("x"), reminder("b"))),
        );
        let image = r#"{"type":"image","source":{"data":"aaaa"}}"#;
        differs(&user(&format!("[{},{image}]", reminder("a"))), &user(&format!("[{},{image}]", reminder("b"))));
        let after = |said: &str| format!("{},{}", user(r#""x""#), user(&format!("[{},{}]", reminder(said), text("y"))));
        differs(&after("a"), &after("b"));
        let system = |said: &str| {
            format!(r#"{{"role":"system","content":"<system-reminder>{said}</system-reminder>x"}},{}"#, user(r#""y""#))
        };
        differs(&system("a"), &system("b"));
    }

    #[test]
    fn appended_messages_leave_the_steps_before_as_they_were() {
        let turns = [
            user(r#""a""#),
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"Bash","input":{"command":"ls"}}]}"#
                .to_owned(),
            user(r#"[{"type":"tool_result","tool_use_id":"t","content":"files"}]"#),
            r#"{"role":"system","content":"a reminder"}"#.to_owned(),
            user(r#""b""#),
        ];
        let histories: Vec<_> = (1..=turns.len()).map(|count| of(&turns[..count].join(","))).collect();
        for (at, history) in histories.iter().enumerate() {
            assert_eq!(history.steps.len(), at + 1);
            assert_eq!(history.is_continued, at > 0);
            assert_eq!(history.steps[..at], histories[at.saturating_sub(1)].steps[..at]);
        }
        assert_eq!(bytes(&histories[4]), [1, 7, 12, 22, 23]);

        let fork = of(&format!("{},{}", turns[..3].join(","), user(r#""another way""#)));
        assert_eq!(fork.steps[..3], histories[4].steps[..3]);
        assert_ne!(fork.steps[3].hash, histories[4].steps[3].hash);
    }

    #[test]
    fn steps_begin_with_the_user_but_what_is_before_counts() {
        let of_system = |said: &str| of(&format!(r#"{{"role":"system","content":"{said}"}},{}"#, user(r#""a""#)));
        assert_eq!(of_system("x").steps.len(), 1);
        assert_ne!(of_system("x").steps, of_system("y").steps);
        assert_eq!(bytes(&of_system("xyz")), [4]);
        for none in [
            r#"{"messages":[]}"#,
            r#"{"messages":[{"role":"system","content":"a"},{"role":"developer","content":"b"}]}"#,
            r#"{"messages":[{"content":"a"},"user",5,null,[{"role":"user"}]]}"#,
            r#"{"messages":"a"}"#,
            r#"{"messages":{"role":"user","content":"a"}}"#,
            r#"{"input":["a","b"]}"#,
            r#"{"prompt":"a"}"#,
        ] {
            assert_eq!(scan(none), None, "{none}");
        }
    }

    #[test]
    fn the_responses_api_says_the_same_in_its_own_words() {
        let input = |input: &str| scan(&format!(r#"{{"instructions":"s","input":{input}}}"#)).expect(input);
        let string = input(r#""<environment_context>a</environment_context> hello""#);
        assert_eq!(string, input(r#"[{"role":"user","content":[{"type":"input_text","text":"hello"}]}]"#));
        assert_eq!(string, scan(r#"{"messages":[{"role":"user","content":"hello"}],"system":"s"}"#).unwrap());
        for (item, is_continued) in [
            (r#"{"type":"message","role":"user","content":[]}"#, false),
            (r#"{"type":"message","role":"assistant","content":[]}"#, true),
            (r#"{"type":"reasoning","summary":[]}"#, true),
            (r#"{"type":"function_call","name":"f","arguments":"{}"}"#, true),
            (r#"{"type":"function_call_output","output":"a"}"#, true),
            (r#"{"type":"local_shell_call"}"#, true),
            (r#"{"type":"call"}"#, false),
        ] {
            let history = input(&format!(r#"[{{"role":"user","content":"a"}},{item}]"#));
            assert_eq!((history.steps.len(), history.is_continued), (2, is_continued), "{item}");
        }
    }

    #[test]
    fn the_system_prompt_is_hashed_apart_wherever_it_stands() {
        let messages = r#""messages":[{"role":"user","content":"a"}]"#;
        let with = |system: &str| scan(&format!("{{{system},{messages}}}")).expect(system);
        let behind = |system: &str| scan(&format!("{{{messages},{system}}}")).expect(system);
        let billing = |say: &str| {
            format!(r#""system":[{{"type":"text","text":"x-anthropic-billing-header: {say}"}},{}]"#, text("s"))
        };
        let plain = with(r#""system":"s""#);
        for same in [
            format!(r#""system":[{}]"#, text("s")),
            r#""system":[{"text":"s","type":"text","cache_control":{"type":"ephemeral"}}]"#.to_owned(),
            r#""instructions":"s""#.to_owned(),
            billing("cc_version=2.1.332.bd3;"),
            billing("cc_version=2.1.332.ef5;"),
            r#""system":"s","instructions":"t""#.to_owned(),
            r#""system":null,"system":"s","system":"t""#.to_owned(),
        ] {
            assert_eq!(with(&same), plain, "{same}");
            assert_eq!(behind(&same), plain, "{same}");
        }
        let none = scan(&format!("{{{messages}}}")).unwrap();
        for empty in [r#""system":[]"#, r#""system":null"#, r#""system":"x-anthropic-billing-header: a""#] {
            assert_eq!(with(empty), none, "{empty}");
        }
        assert_eq!(plain.steps, none.steps);
        let systems = [plain.system, none.system, with(r#""system":"t""#).system, with(r#""system":"""#).system];
        let distinct: std::collections::BTreeSet<_> = systems.iter().collect();
        assert_eq!(distinct.len(), systems.len());
    }

    #[test]
    fn text_bytes_are_of_what_a_model_reads() {
        for (content, expected) in [
            (r#""12345""#, 5),
            (r#""\u00e9\n""#, 3),
            (r#"[{"type":"text","text":"123","cache_control":{"type":"ephemeral"}},{"type":"text","text":"45"}]"#, 5),
            (r#"[{"type":"tool_result","tool_use_id":"toolu_01","content":"123"}]"#, 3),
            (r#"[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]"#, 0),
            (r#"[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]"#, 0),
            (r#"[{"type":"tool_use","id":"t","name":"f","input":{"a":["12",{"b":"3"}],"c":4}}]"#, 4),
            (r#"[{"type":"thinking","thinking":"12","signature":"AAAA"}]"#, 2),
            (r#"["<system-reminder>a</system-reminder>b"]"#, 37),
        ] {
            assert_eq!(bytes(&of(&user(content))), [expected], "{content}");
        }
    }

    #[test]
    fn what_is_nested_too_deep_counts_by_its_bytes() {
        let nested = |depth: usize, inner: &str| format!("{}{inner}{}", "[".repeat(depth), "]".repeat(depth));
        let deep = |inner: &str| hashes(&of(&user(&nested(10_000, inner))));
        assert_eq!(deep("1"), deep("1"));
        assert_ne!(deep("1"), deep("2"));
        assert_ne!(deep("1"), deep(" 1"));
        // The list of messages and the message are two of the 24.
        let at = |depth: usize, inner: &str| hashes(&of(&user(&nested(depth, inner))));
        assert_eq!(at(22, "1"), at(22, " 1"));
        assert_ne!(at(23, "1"), at(23, " 1"));
    }

    #[test]
    fn of_very_many_messages_the_last_steps_are_kept() {
        let all = |count: usize| of(&vec![user(r#""a""#); count].join(","));
        let most = all(4096);
        assert_eq!(most.steps.len(), 4096);
        for count in [4097, 8191, 8192, 8193, 20_000] {
            let history = all(count);
            assert_eq!((history.steps.len(), history.steps[4095].text_bytes as usize), (4096, count));
        }
        assert_eq!(all(4097).steps[..4095], most.steps[1..]);
    }

    #[test]
    fn the_last_answer_is_the_newest_message_of_the_assistant() {
        let (asked, said) = (user(r#""q""#), r#"{"role":"assistant","content":"a"}"#);
        let tool = r#"{"role":"tool","content":"t"}"#;
        let (call, output) =
            (r#"{"type":"function_call","name":"f"}"#, r#"{"type":"function_call_output","output":"a"}"#);
        for (messages, last_answer) in [
            (vec![asked.as_str()], None),
            (vec![said, &asked], None),
            (vec![&asked, said], Some(1)),
            (vec![&asked, said, &asked], Some(1)),
            (vec![&asked, said, tool, tool, r#"{"role":"system","content":"a"}"#], Some(1)),
            (vec![&asked, said, tool, said, &asked], Some(3)),
            (vec![&asked, call, output], Some(1)),
            (vec![&asked, output], None),
            (vec![&asked, r#"{"content":"a","role":"assistant"}"#, r#""stray""#], Some(1)),
        ] {
            let history = of(&messages.join(","));
            assert_eq!(history.last_answer, last_answer, "{messages:?}");
        }
    }

    #[test]
    fn the_last_answer_is_found_where_steps_were_dropped_and_lost_with_them() {
        let after = |count: usize| {
            let asked = vec![user(r#""q""#); count].join(",");
            of(&format!(r#"{},{{"role":"assistant","content":"a"}},{asked}"#, user(r#""q""#)))
        };
        for (count, last_answer) in
            [(4094, Some(1)), (4095, Some(0)), (4096, None), (8189, None), (8190, None), (20_000, None)]
        {
            let history = after(count);
            assert_eq!((history.last_answer, history.is_continued), (last_answer, true), "{count}");
        }
    }

    #[test]
    fn there_is_no_history_before_the_end_or_of_what_is_no_json() {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true}"#;
        let mut scanner = Scanner::new(Wanted::ModelFirst);
        for byte in body.bytes() {
            assert_eq!(scanner.history(), None);
            scanner.feed(&[byte]);
        }
        assert_eq!((scanner.progress(), scanner.history()), (Progress::Closed, Some(&of(&user(r#""a""#)))));

        for broken in [
            r#"[{"role":"user","content":"a"}}"#,
            r#"[{"role":"user","content":"a"],[]]"#,
            r#"[{"role":"user","content":"a",}]"#,
            r#"[{"role":"user" "content":"a"}]"#,
            r#"[{"role":"user","content":"a"},]"#,
            r#"[{"role":"user","content":a}]"#,
            r#"[{role:"user"},{"role":"user","content":"a"}]"#,
            r#"[{"role":"user","content":[1 2]}]"#,
        ] {
            let body = format!(r#"{{"messages":{broken},"model":"m"}}"#);
            let mut scanner = Scanner::new(Wanted::ModelAndSession);
            let progress = scanner.feed(body.as_bytes());
            assert_eq!(scanner.history(), None, "{body}");
            assert_eq!((progress, scanner.fields().model.name()), (Progress::Closed, Some("m")), "{body}");
        }
        assert_eq!(scan(r#"{"messages":[{"role":"user","content":"a"}],"#), None);
    }

    #[test]
    fn of_several_lists_of_messages_none_is_the_history() {
        let list = r#"[{"role":"user","content":"a"}]"#;
        for (body, repeated) in [
            (format!(r#"{{"messages":{list},"messages":{list}}}"#), "messages"),
            (format!(r#"{{"messages":null,"m\u0065ssages":{list}}}"#), "messages"),
            (format!(r#"{{"messages":{list},"input":{list}}}"#), "input"),
            (format!(r#"{{"input":"a","messages":{list}}}"#), "messages"),
        ] {
            let mut scanner = Scanner::new(Wanted::ModelAndSession);
            scanner.feed(body.as_bytes());
            assert_eq!(scanner.history(), None, "{body}");
            assert_eq!(scanner.fields().duplicates.names().collect::<Vec<_>>(), [repeated], "{body}");
        }
    }

    /// Pins outlive the process.
    #[test]
    fn a_history_is_the_same_in_every_build() {
        let history =
            scan(r#"{"system":"s","messages":[{"role":"user","content":"a"},{"role":"assistant","content":[1.5]}]}"#)
                .unwrap();
        let values = (history.system, hashes(&history));
        assert_eq!(
            values,
            (0xB3F3_4E0D_0C1A_C14B, vec![0x9DC8_5D4C_4801_8451, 0x87E1_A7EC_4BDD_FA7C]),
            "snapshots of pins from before would lose their conversations"
        );
    }
}
