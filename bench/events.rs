//! Events of vLLM 0.32's streams, one a chunk, as it sends them.

pub const CHAT: &str = "data: {\"id\":\"chatcmpl-ab8d6103f51fccc0\",\"object\":\"chat.completion.chunk\",\"created\":1795964617,\"model\":\"tiny-agent\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" status\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";

pub const CHAT_ESCAPED: &str = "data: {\"id\":\"chatcmpl-ab8d6103f51fccc0\",\"object\":\"chat.completion.chunk\",\"created\":1795964617,\"model\":\"tiny-agent\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\\");\\n\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";

pub const CHAT_TOOL: &str = "data: {\"id\":\"chatcmpl-834c430123629235\",\"object\":\"chat.completion.chunk\",\"created\":1795995380,\"model\":\"tiny-agent\",\"choices\":[{\"index\":0,\"delta\":{\"content\":null,\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"command\"}}]},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";

pub const CHAT_USAGE: &str = "data: {\"id\":\"chatcmpl-a2892cad70af9e45\",\"object\":\"chat.completion.chunk\",\"created\":1795964617,\"model\":\"tiny-agent\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"itecture\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}],\"usage\":{\"prompt_tokens\":740,\"total_tokens\":742,\"completion_tokens\":2,\"completion_tokens_details\":null}}\n\n";

pub const COMPLETIONS: &str = "data: {\"id\":\"cmpl-94fdb15487fe1bd7\",\"object\":\"text_completion\",\"created\":1795964617,\"model\":\"tiny-agent\",\"choices\":[{\"index\":0,\"text\":\" render\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]}\n\n";

pub const MESSAGES: &str = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\" keep\"},\"index\":0}\n\n";

pub const RESPONSES: &str = "event: response.output_text.delta\ndata: {\"content_index\":0,\"delta\":\"lement\",\"item_id\":\"msg_89d2e8633aeaf239\",\"logprobs\":[],\"output_index\":0,\"sequence_number\":4,\"type\":\"response.output_text.delta\"}\n\n";

pub const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// One of each dialect and kind.
pub const EVENTS: [(&str, &str); 8] = [
    ("chat", CHAT),
    ("chat_escaped", CHAT_ESCAPED),
    ("chat_tool_call", CHAT_TOOL),
    ("chat_with_usage", CHAT_USAGE),
    ("completions", COMPLETIONS),
    ("messages", MESSAGES),
    ("responses", RESPONSES),
    ("keep_alive", KEEP_ALIVE),
];

/// The event with another one of its numbers, so that it is not like the one before it but for its text and has to be read.
/// Those of `responses` never are alike: they are numbered.
pub fn unlike(event: &str) -> String {
    let Some(at) = event.rfind(|letter: char| letter.is_ascii_digit()) else { return event.to_owned() };
    let other = if event[at..].starts_with('1') { "2" } else { "1" };
    format!("{}{other}{}", &event[..at], &event[at + 1..])
}
