//! What a scripted model says: which words of a user lead to which tool calls and to which text.
//!
//! A script lets real agents work against a modelled engine, tool calls included. It decides by the conversation alone, so
//! every replica with the same script says the same, and a conversation may go on at any of them.

mod dialogue;

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::{Map, Value};
use thiserror::Error;

pub use dialogue::{Dialogue, OfferedTool, shown_as};

use dialogue::Said;

/// The words that a model reacts to, and what it says when it was told none of them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    #[serde(default)]
    rules: Vec<Rule>,
    /// The reply to a conversation in which no rule's words were said.
    otherwise: String,
}

/// What the model does once a user has said something.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// Anywhere in a message of the user. Of several messages the newest decides, of several rules the first.
    says: String,
    /// One reply each: the first to the words, the next to the first tool's result and so on. The last is text, and stays
    /// the reply until other words are said.
    steps: Vec<Step>,
}

/// One reply.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Step {
    Text(String),
    Call(CallStep),
}

/// A call of a tool. To a request that doesn't offer the tool the step isn't there: a rule may have each agent's own tool,
/// and agents' side calls offer none.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallStep {
    /// As the model sees it: a tool of a namespace is `NAMESPACE__TOOL`.
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// What the model says in one turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line<'a> {
    /// Words.
    Text(&'a str),
    /// A call of an offered tool with a JSON object.
    Call {
        /// The tool.
        tool: &'a OfferedTool,
        /// Its arguments, with their keys in order.
        arguments: String,
    },
}

/// Why a text is no script.
#[derive(Debug, Error)]
#[error("no script: {0}")]
pub struct ScriptError(#[from] serde_yaml::Error);

impl Script {
    /// Reads YAML or JSON.
    pub fn from_yaml(text: &str) -> Result<Self, ScriptError> {
        // Steps as maps of one key, which is how JSON writes them too, rather than as YAML's tags.
        let script: Self =
            serde_yaml::with::singleton_map_recursive::deserialize(serde_yaml::Deserializer::from_str(text))?;
        script.check().map_err(serde_yaml::Error::custom)?;
        Ok(script)
    }

    /// What the model says next.
    pub fn line<'a>(&'a self, dialogue: &'a Dialogue) -> Line<'a> {
        let mut results = 0;
        for said in dialogue.said.iter().rev() {
            match said {
                Said::ToolResult => results += 1,
                Said::User(text) => {
                    let told = self.rules.iter().find(|rule| text.contains(&rule.says));
                    if let Some(line) = told.and_then(|rule| rule.line(results, &dialogue.tools)) {
                        return line;
                    }
                }
            }
        }
        Line::Text(&self.otherwise)
    }

    fn check(&self) -> Result<(), String> {
        fit_to_say("otherwise", &self.otherwise)?;
        self.rules.iter().try_for_each(Rule::check)
    }
}

impl Rule {
    fn line<'a>(&'a self, results: usize, tools: &'a [OfferedTool]) -> Option<Line<'a>> {
        let mut lines: Vec<_> = self.steps.iter().filter_map(|step| step.line(tools)).collect();
        lines.truncate(results + 1);
        lines.pop()
    }

    fn check(&self) -> Result<(), String> {
        if self.says.is_empty() {
            return Err("a rule's `says` is empty".into());
        }
        let ends_in_text = matches!(self.steps.last(), Some(Step::Text(_)));
        if !ends_in_text {
            return Err(format!("the last step of `{}` must be a text", self.says));
        }
        self.steps.iter().try_for_each(|step| match step {
            Step::Text(text) => fit_to_say(&self.says, text),
            Step::Call(call) => fit_to_say(&self.says, &call.arguments()),
        })
    }
}

impl Step {
    fn line<'a>(&'a self, tools: &'a [OfferedTool]) -> Option<Line<'a>> {
        match self {
            Self::Text(text) => Some(Line::Text(text)),
            Self::Call(call) => {
                let tool = tools.iter().find(|tool| tool.shown_as == call.tool)?;
                Some(Line::Call { tool, arguments: call.arguments() })
            }
        }
    }
}

impl CallStep {
    fn arguments(&self) -> String {
        Value::Object(self.arguments.clone()).to_string()
    }
}

/// A token is four bytes, and each leaves as soon as it is there: a character of several bytes could be torn apart.
fn fit_to_say(place: &str, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("`{place}` has an empty reply"));
    }
    if !text.is_ascii() {
        return Err(format!("`{place}` has a reply that isn't all ASCII"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SCRIPT: &str = r#"
rules:
  - says: MAKE-A-NOTE
    steps:
      - call: {tool: Bash, arguments: {command: "date > note", b: 1, a: 2}}
      - call: {tool: Read}
      - text: The note is made.
  - says: GREET
    steps: [{text: Hello.}]
otherwise: What now?
"#;

    fn say(messages: Value, tools: Value) -> String {
        let script = Script::from_yaml(SCRIPT).expect("a script");
        let body = json!({"messages": messages, "tools": tools});
        let dialogue = Dialogue::of_messages(body.as_object().expect("an object"));
        match script.line(&dialogue) {
            Line::Text(text) => text.to_owned(),
            Line::Call { tool, arguments } => format!("{}({arguments})", tool.name),
        }
    }

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    fn result() -> Value {
        json!({"role": "user", "content": [{"type": "tool_result", "content": "GREET"}, {"type": "text", "text": "GREET"}]})
    }

    #[test]
    fn each_result_leads_to_the_next_step_and_the_last_step_stays() {
        let tools = json!([{"name": "Read"}, {"name": "Bash"}]);
        let asked = user("please MAKE-A-NOTE now");
        let lines =
            [r#"Bash({"a":2,"b":1,"command":"date > note"})"#, "Read({})", "The note is made.", "The note is made."];
        for (results, line) in lines.iter().enumerate() {
            let messages = [vec![asked.clone()], vec![result(); results]].concat();
            assert_eq!(say(json!(messages), tools.clone()), *line, "after {results} results");
        }
    }

    #[test]
    fn a_tool_that_is_not_offered_is_not_called() {
        let read = json!([{"name": "Read"}]);
        assert_eq!(say(json!([user("MAKE-A-NOTE")]), read.clone()), "Read({})");
        assert_eq!(say(json!([user("MAKE-A-NOTE"), result()]), read), "The note is made.");
        assert_eq!(say(json!([user("MAKE-A-NOTE")]), json!(null)), "The note is made.");
    }

    #[test]
    fn the_newest_words_decide() {
        let reminder = json!({"role": "user", "content": "a reminder of no interest"});
        assert_eq!(say(json!([user("MAKE-A-NOTE"), user("now GREET"), reminder]), json!([])), "Hello.");
        assert_eq!(say(json!([user("hello?")]), json!([])), "What now?");
    }

    #[test]
    fn what_is_no_script_is_refused() {
        for text in [
            "rules: []",
            "otherwise: ''",
            "otherwise: na\u{ef}ve",
            "{otherwise: a, rules: [{says: b, steps: []}]}",
            "{otherwise: a, rules: [{says: '', steps: [{text: c}]}]}",
            "{otherwise: a, rules: [{says: b, steps: [{call: {tool: c}}]}]}",
            "{otherwise: a, rules: [{says: b, steps: [{call: {tool: c, argument: {}}}, {text: d}]}]}",
            "{otherwise: a, rules: [{says: b, steps: [{sing: d}]}]}",
        ] {
            assert!(Script::from_yaml(text).is_err(), "{text}");
        }
    }
}
