//! Tests of the package against the real model, crafted files and the program itself.

mod dense;
mod golden;
