//! A module uses floors below its own, or its own floor without a cycle; the storage wing sees floor 0 and the step.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The floors, from the ground; the wing is apart.
const FLOORS: &[&[&str]] = &[
    &["id", "error", "layout", "list"],
    &["block", "prefix", "evict", "event"],
    &["table", "sequence", "step"],
    &["cache"],
    &["sync", "scheduler", "tier"],
];
const WING: &str = "storage";
const WING_SEES: &[&str] = &["id", "error", "layout", "step"];

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Which top-level modules every top-level module names in its code (tests and comments apart).
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files {
        let relative = file.strip_prefix(&src).unwrap();
        let module = relative.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        let of_tests =
            relative.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")));
        if module == "lib" || module == "planted" || of_tests {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        // Test modules stand at the end of a file, or in files of their own that only tests compile.
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let named = uses.entry(module.to_owned()).or_default();
        for line in code.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            for (at, _) in line.match_indices("crate::") {
                let rest = &line[at + "crate::".len()..];
                let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
                if !name.is_empty() && name != module && name != "planted" {
                    named.insert(name);
                }
            }
        }
    }
    uses
}

#[test]
fn modules_use_lower_floors_or_their_own_without_a_cycle() {
    let uses = uses();
    assert!(uses.len() > 8, "the modules were found");
    for (module, named) in uses.iter().filter(|(module, _)| *module != WING) {
        let own = floor(module).unwrap_or_else(|| panic!("{module} is on no floor: give it one here and in the docs"));
        for other in named {
            let its = floor(other).unwrap_or_else(|| panic!("{module} uses {other}, which is on no floor"));
            assert!(its <= own, "{module} (floor {own}) uses {other} (floor {its})");
            if its == own {
                assert!(!reaches(&uses, other, module), "{module} and {other} use each other");
            }
        }
    }
}

/// Whether `from` uses `to`, directly or through others.
fn reaches(uses: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            open.extend(uses.get(module).into_iter().flatten().map(String::as_str));
        }
    }
    false
}

#[test]
fn storage_never_sees_the_cache() {
    let uses = uses();
    for other in &uses[WING] {
        assert!(WING_SEES.contains(&other.as_str()), "storage uses {other}");
    }
}

#[test]
fn unsafe_code_lives_in_storage_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    rust_files(&root.join("src"), &mut files);
    for file in files {
        let in_wing = file.strip_prefix(root.join("src")).unwrap().starts_with(WING);
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            let allowed = in_wing || file.ends_with("storage.rs");
            assert!(allowed || !line.contains("unsafe"), "{}: {line}", file.display());
        }
    }
}
