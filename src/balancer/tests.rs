//! Facts and properties of the decision core, on a clock that the test holds.
