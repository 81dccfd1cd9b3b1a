/// The tokens of a text by `mteval-v13a.pl`, as sacreBLEU's `13a`.
///
/// Joined lines, four entities, then four substitutions, one after the other over the whole text:
/// 1. spaces around ASCII signs other than `' , - .`;
/// 2. spaces around a full stop or comma that follows anything but a digit;
/// 3. spaces around a full stop or comma that precedes anything but a digit;
/// 4. spaces around a dash that follows a digit.
///
/// The substitutions are those of regular expressions: from left to right, never looking at a character twice. That
/// is why in `a..b` only some of the stops are treated by one rule.
///
/// ```
/// use epl_models::text::bleu::tokenize_13a;
///
/// assert_eq!(tokenize_13a("It's 3.5 m, isn't it?"), ["It's", "3.5", "m", ",", "isn't", "it", "?"]);
/// ```
pub fn tokenize_13a(text: &str) -> Vec<String> {
    let text = text.trim_end_matches(is_space);
    let text = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    let text = unescape(text);
    let chars: Vec<char> = [' '].into_iter().chain(text.chars()).chain([' ']).collect();
    let chars = space_signs(&chars);
    let chars = replace_pairs(&chars, |a, b| !a.is_ascii_digit() && is_stop(b), [false, true, true]);
    let chars = replace_pairs(&chars, |a, b| is_stop(a) && !b.is_ascii_digit(), [true, true, false]);
    let chars = replace_pairs(&chars, |a, b| a.is_ascii_digit() && b == '-', [false, true, true]);
    chars.split(|&c| is_space(c)).filter(|token| !token.is_empty()).map(|token| token.iter().collect()).collect()
}

/// Four entities, in this order, each over the whole text: `&amp;lt;` becomes `<`.
fn unescape(text: String) -> String {
    if !text.contains('&') {
        return text;
    }
    text.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
}

/// ``s/([\{-\~\[-\` -\&\(-\+\:-\@\/])/ \1 /g``
fn space_signs(chars: &[char]) -> Vec<char> {
    let mut out = Vec::with_capacity(chars.len() * 2);
    for &c in chars {
        if matches!(c, '{'..='~' | '['..='`' | ' '..='&' | '('..='+' | ':'..='@' | '/') {
            out.extend([' ', c, ' ']);
        } else {
            out.push(c);
        }
    }
    out
}

/// Replaces, from left to right and without overlap, every pair of characters that matches. `spaces` says where the
/// replacement has a space: before the first, between, after the second.
fn replace_pairs(chars: &[char], matches: impl Fn(char, char) -> bool, spaces: [bool; 3]) -> Vec<char> {
    let mut out = Vec::with_capacity(chars.len() + chars.len() / 4);
    let mut rest = chars;
    while let [first, tail @ ..] = rest {
        match tail {
            [second, tail @ ..] if matches(*first, *second) => {
                let pieces = [(spaces[0], *first), (spaces[1], *second)];
                for (space, c) in pieces {
                    out.extend(space.then_some(' '));
                    out.push(c);
                }
                out.extend(spaces[2].then_some(' '));
                rest = tail;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

fn is_stop(c: char) -> bool {
    matches!(c, '.' | ',')
}

/// What Python's `str.split()` splits at: Unicode's white space and the four ASCII separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}
