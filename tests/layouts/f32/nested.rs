//! Scopes never change the mathematics: in f32, all errors are at most 1e-5.

#[test]
fn a_model_in_scopes_equals_the_plain_one() {
    crate::scopes::all(1e-5);
}
