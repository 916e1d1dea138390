//! Parameters of a MIME header: `form-data; name="model"`, `multipart/form-data; boundary=x`.

/// The header can be read in more than one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ambiguous;

/// The value of the parameter of that name, `Ok(None)` where the header has none. A parameter that
/// is given twice, or split or encoded after RFC 2231 (`name*0=`), is ambiguous: the engine's
/// parser would choose another value than a simple one.
pub(super) fn parameter(header: &str, wanted: &str) -> Result<Option<String>, Ambiguous> {
    let mut found = None;
    let mut rest = header;
    // A first item without `=` is the media type or the disposition, later ones are flags: neither
    // has a value.
    while let Some((before, after)) = rest.split_once('=') {
        let name = before.rsplit(';').next().unwrap_or(before).trim();
        let (value, after) = value(after.trim_start());
        rest = after;
        let (plain, extended) =
            name.split_once('*').map_or((name, None), |(plain, extension)| (plain, Some(extension)));
        if !plain.eq_ignore_ascii_case(wanted) {
            continue;
        }
        if extended.is_some() || found.is_some() {
            return Err(Ambiguous);
        }
        found = Some(value);
    }
    Ok(found)
}

/// Whether no parser can read a header otherwise than [`parameter`] does: a value and parameters with tokens or plain quoted
/// texts, and nothing else. Escapes, semicolons in quotes, odd spaces and RFC 2231's ways (but for a file's name) are what
/// parsers differ in.
pub(super) fn is_plain(header: &str) -> bool {
    let mut items = header.split(';').map(|item| item.trim_matches([' ', '\t']));
    let is_value = |item: &str| !item.is_empty() && item.split('/').all(is_token);
    items.next().is_some_and(is_value) && items.all(is_plain_parameter)
}

fn is_plain_parameter(item: &str) -> bool {
    let Some((name, value)) = item.split_once('=') else { return false };
    let is_name = is_token(name) && (!name.contains('*') || name.eq_ignore_ascii_case("filename*"));
    let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    let is_text = |text: &str| !text.contains(['"', '\\']) && !text.contains(char::is_control);
    is_name && quoted.map_or_else(|| is_token(value), is_text)
}

/// As RFC 9110 section 5.6.2 has it.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// A quoted or a bare value, and what follows it.
fn value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return (text[..end].trim_end().to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut escaped = false;
    for (at, character) in quoted.char_indices() {
        match character {
            '"' if !escaped => return (value, &quoted[at + 1..]),
            '\\' if !escaped => escaped = true,
            _ => {
                value.push(character);
                escaped = false;
            }
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_bare_and_quoted() {
        for (header, value) in [
            ("form-data; name=model", Some("model")),
            ("form-data; name=\"model\"", Some("model")),
            ("form-data;NAME = \"mo\\\"del\" ; filename=x", Some("mo\"del")),
            ("form-data; filename=\"a; name=file\"; name=\"model\"", Some("model")),
            ("form-data; flag; name=model ; x=y", Some("model")),
            ("form-data; filename=name", None),
            ("form-data; filename*=UTF-8''x; name=model", Some("model")),
            ("form-data; name=\"unclosed", Some("unclosed")),
            ("form-data; name=", Some("")),
            ("form-data; name", None),
            ("form-data", None),
            ("", None),
        ] {
            assert_eq!(parameter(header, "name"), Ok(value.map(str::to_owned)), "{header}");
        }
    }

    #[test]
    fn what_two_parsers_could_read_in_two_ways_is_not_plain() {
        for header in [
            "form-data",
            "form-data; name=model",
            "form-data;name=\"model\"",
            "form-data ;\tname=\"model\" ; filename=\"b\u{fc}cher 1.wav\"",
            "form-data; name=\"file\"; filename*=UTF-8''b%C3%BC.wav",
            "multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW",
            "multipart/form-data; boundary=\"a b\"",
        ] {
            assert!(is_plain(header), "{header}");
        }
        for header in [
            "",
            "; name=model",
            "form data; name=model",
            "form-data; flag; name=model",
            "form-data; name=model;",
            "form-data; name = model",
            "form-data; name=",
            "form-data; name=mo\"del",
            "form-data; name=\"model",
            "form-data; name=\"mo\\del\"",
            "form-data; x=a\\\"; name=\"model\"",
            "form-data; x=\"a; name=model; y=b\"",
            "form-data; a=\"\nx: \"; name=\"model\"",
            "form-data;\u{a0}name=\"model\"",
            "form-data;\u{fffd}name=\"model\"",
            "form-data; name*=UTF-8''model",
            "form-data; name*0=mo; name*1=del",
            "form-data; (comment) name=model",
        ] {
            assert!(!is_plain(header), "{header}");
        }
    }

    #[test]
    fn a_value_said_twice_or_encoded_is_ambiguous() {
        for header in ["form-data; name=a; name=a", "form-data; name*=UTF-8''model", "form-data; name*0=mo; name*1=del"]
        {
            assert_eq!(parameter(header, "name"), Err(Ambiguous), "{header}");
        }
    }
}
