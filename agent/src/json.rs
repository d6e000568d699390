//! JSON from others, read only when what it becomes fits into memory.

use serde::de::DeserializeOwned;

/// What a document may take up once it is read, bytes. Nodes with hundreds of ports take one or two million.
const MAX_COST: usize = 10 << 20;
/// What one object, array or further value costs at most once it is read, without its text: measured with
/// `serde_json::Value`, whose objects keep their keys in order and in a table.
const OBJECT_COST: usize = 400;
const VALUE_COST: usize = 110;

/// A document that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// It would take up too much memory.
    #[error("it holds more values than any use of it needs")]
    TooComplex,
    /// It is no JSON, or not what was expected.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Reads a document. Its length in bytes is the caller's to limit.
///
/// # Errors
/// It holds too many values, or is not what `T` says.
pub fn from_slice<T: DeserializeOwned>(document: &[u8]) -> Result<T, JsonError> {
    if cost(document) > MAX_COST {
        return Err(JsonError::TooComplex);
    }
    Ok(serde_json::from_slice(document)?)
}

/// What the values of a document cost; what is inside texts does not count.
fn cost(document: &[u8]) -> usize {
    let (mut in_text, mut escaped, mut cost) = (false, false, 0_usize);
    for byte in document {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' if !in_text => cost += OBJECT_COST,
            b',' | b'[' if !in_text => cost += VALUE_COST,
            _ => {}
        }
    }
    cost
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn values_are_counted_and_texts_are_not() {
        let objects = |count: usize| format!("[{}]", vec![r#"{"a":0}"#; count].join(","));
        assert!(from_slice::<Value>(objects(15_000).as_bytes()).is_ok());
        assert!(matches!(from_slice::<Value>(objects(40_000).as_bytes()), Err(JsonError::TooComplex)));
        assert!(matches!(from_slice::<Value>("[0,".repeat(200_000).as_bytes()), Err(JsonError::TooComplex)));
        let text = format!(r#"["{}\"{}"]"#, "{".repeat(1 << 20), ",".repeat(1 << 20));
        assert!(from_slice::<Value>(text.as_bytes()).is_ok());
        assert!(matches!(from_slice::<Value>(b"{"), Err(JsonError::Json(_))));
    }
}
