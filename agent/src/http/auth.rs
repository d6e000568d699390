//! The `Authorization` header of HTTP Basic (RFC 7617).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ferric_types::Secret;

/// Value of an `Authorization` header for a user and a password.
pub fn basic(user: &str, password: &str) -> Secret<String> {
    Secret::new(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_encoded_as_in_rfc_7617() {
        assert_eq!(basic("Aladdin", "open sesame").expose(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(basic("test", "123\u{a3}").expose(), "Basic dGVzdDoxMjPCow==");
    }
}
