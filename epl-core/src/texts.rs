//! Texts that ranks tell each other, such as what went wrong.

use epl_comm::ProcessGroup;

use crate::error::Result;

/// What every member of a group says. Collective.
pub(crate) fn texts(group: &ProcessGroup, own: &str) -> Result<Vec<String>> {
    if group.size() == 1 {
        return Ok(vec![own.to_string()]);
    }
    let mut bytes: Vec<i64> = own.bytes().map(i64::from).collect();
    let lens = group.all_gather_counts(&[bytes.len() as i64])?;
    let longest = lens.iter().map(|len| len[0]).max().unwrap_or(0) as usize;
    if longest == 0 {
        return Ok(vec![String::new(); group.size()]);
    }
    bytes.resize(longest, 0);
    let all = group.all_gather_counts(&bytes)?;
    let text = |(bytes, len): (&Vec<i64>, &Vec<i64>)| {
        let bytes: Vec<u8> = bytes[..len[0] as usize].iter().map(|byte| *byte as u8).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(all.iter().zip(&lens).map(text).collect())
}

/// What went wrong on any member of a group: none, if nothing did. Collective: so that no member waits for one that failed.
pub(crate) fn faults(group: &ProcessGroup, own: &Result<(), String>) -> Result<Option<String>> {
    let texts = texts(group, own.as_ref().err().map_or("", String::as_str))?;
    let failed = texts.iter().enumerate().filter(|(_, text)| !text.is_empty());
    let reasons: Vec<String> = failed.map(|(member, text)| format!("{}: {text}", group.global(member))).collect();
    Ok((!reasons.is_empty()).then(|| reasons.join("; ")))
}
