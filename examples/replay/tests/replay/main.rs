//! Tests of the package: the counts against plain simulations and published values, and the program itself.

mod adaptive;
mod games;
mod plain;
mod program;
mod published;
mod traffic;
