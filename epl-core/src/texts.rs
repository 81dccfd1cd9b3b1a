//! What went wrong on ranks, told to all.

use epl_comm::ProcessGroup;

use crate::error::Result;

/// What went wrong on any member of a group: none, if nothing did. Collective: so that no member waits for one that failed.
pub(crate) fn faults(group: &ProcessGroup, own: &Result<(), String>) -> Result<Option<String>> {
    let texts = group.all_gather_texts(own.as_ref().err().map_or("", String::as_str))?;
    let failed = texts.iter().enumerate().filter(|(_, text)| !text.is_empty());
    let reasons: Vec<String> = failed.map(|(member, text)| format!("{}: {text}", group.global(member))).collect();
    Ok((!reasons.is_empty()).then(|| reasons.join("; ")))
}
