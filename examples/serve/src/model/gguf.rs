//! A GGUF file opened for reading: typed metadata, and tensors that are checked against the file before they are read.
//!
//! candle parses the format. What is added here is that nothing a broken file says can hurt: every access names its
//! key, every tensor is known to lie inside the file before memory is asked for, and a panic inside the parser (a zero
//! alignment makes it divide by zero) becomes an error.

use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use std::fs::File;
use std::io::BufReader;
use std::panic::{catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

use candle_core::Device;
use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{Content, Value};

/// Why a GGUF file could not be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file cannot be opened or read at all.
    #[error("cannot be opened: {0}")]
    Open(String),
    /// The bytes are not a whole GGUF file.
    #[error("not a readable GGUF file ({0})")]
    Malformed(String),
    /// A key that the format requires is not there.
    #[error("the key `{0}` is missing")]
    MissingKey(String),
    /// A key holds something other than what it must hold.
    #[error("the key `{key}` holds {found}, which is not {expected}")]
    BadValue {
        /// The metadata key.
        key: String,
        /// What it holds, shortened.
        found: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A tensor that the model needs is not there.
    #[error("the tensor `{0}` is missing")]
    MissingTensor(String),
    /// A tensor lies, wholly or in part, behind the end of the file.
    #[error("the tensor `{name}` ends at byte {end} of a file of {file_bytes} bytes: the file is truncated")]
    BeyondFile {
        /// The tensor's name.
        name: String,
        /// First byte after the tensor, or `u64::MAX` where the sum overflows.
        end: u64,
        /// Length of the file in bytes.
        file_bytes: u64,
    },
    /// A tensor has other dimensions than the metadata says.
    #[error("the tensor `{name}` has the shape {found:?}, the metadata needs {expected:?}")]
    Shape {
        /// The tensor's name.
        name: String,
        /// The shape in the file, rows first.
        found: Vec<usize>,
        /// The shape that the metadata implies, rows first.
        expected: Vec<usize>,
    },
}

/// An open GGUF file.
#[derive(Debug)]
pub struct Gguf {
    content: Content,
    /// Locked while a tensor is read, because seeking and reading share one position.
    file: Mutex<File>,
    file_bytes: u64,
}

impl Gguf {
    /// Opens a file and reads its header: metadata and the table of tensors, no weights.
    ///
    /// # Errors
    /// [`GgufError::Open`] and [`GgufError::Malformed`]; [`GgufError::BeyondFile`] for the first tensor, in the order
    /// of names, that the file is too short for.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let open = |e: std::io::Error| GgufError::Open(e.to_string());
        // Looked at before it is opened: to open a pipe would wait for somebody to write to it.
        let facts = std::fs::metadata(path).map_err(open)?;
        if !facts.is_file() {
            return Err(GgufError::Open("not a file".into()));
        }
        let file = File::open(path).map_err(open)?;
        let mut reader = BufReader::new(file);
        let content = guarded(|| Content::read(&mut reader))?;
        let gguf = Self { content, file: Mutex::new(reader.into_inner()), file_bytes: facts.len() };
        gguf.check_extents()?;
        Ok(gguf)
    }

    /// Refuses a file that is shorter than its own table of tensors.
    fn check_extents(&self) -> Result<(), GgufError> {
        let mut names: Vec<&String> = self.content.tensor_infos.keys().collect();
        names.sort();
        for name in names {
            let info = &self.content.tensor_infos[name];
            let block = info.ggml_dtype.block_size();
            let elements = info.shape.dims().iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim));
            let end = elements
                .and_then(|n| n.div_ceil(block).checked_mul(info.ggml_dtype.type_size()))
                .and_then(|n| u64::try_from(n).ok())
                .and_then(|n| n.checked_add(info.offset))
                .and_then(|n| n.checked_add(self.content.tensor_data_offset))
                .unwrap_or(u64::MAX);
            if end > self.file_bytes {
                return Err(GgufError::BeyondFile { name: name.clone(), end, file_bytes: self.file_bytes });
            }
        }
        Ok(())
    }

    /// The names of all tensors, sorted.
    pub fn tensor_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.content.tensor_infos.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Whether the file has a tensor of this name.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.content.tensor_infos.contains_key(name)
    }

    /// The shape of a tensor, rows first.
    ///
    /// # Errors
    /// [`GgufError::MissingTensor`].
    pub fn tensor_shape(&self, name: &str) -> Result<&[usize], GgufError> {
        match self.content.tensor_infos.get(name) {
            Some(info) => Ok(info.shape.dims()),
            None => Err(GgufError::MissingTensor(name.into())),
        }
    }

    /// Reads one tensor as it is stored, after its shape is known to be `expected` (rows first).
    ///
    /// # Errors
    /// [`GgufError::MissingTensor`], [`GgufError::Shape`], [`GgufError::Malformed`].
    pub fn tensor(&self, name: &str, expected: &[usize]) -> Result<QTensor, GgufError> {
        let found = self.tensor_shape(name)?;
        if found != expected {
            return Err(GgufError::Shape { name: name.into(), found: found.to_vec(), expected: expected.to_vec() });
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        guarded(|| self.content.tensor(&mut *file, name, &Device::Cpu))
    }

    /// The metadata keys that start with `prefix`, sorted.
    pub fn keys(&self, prefix: &str) -> Vec<&str> {
        let all = self.content.metadata.keys().map(String::as_str);
        let mut keys: Vec<&str> = all.filter(|key| key.starts_with(prefix)).collect();
        keys.sort_unstable();
        keys
    }

    fn get<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.content.metadata.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(GgufError::BadValue { key: key.into(), found: describe(value), expected }),
        }
    }

    /// A non-negative integer, of whatever width it was written in.
    ///
    /// # Errors
    /// [`GgufError::BadValue`] where the key holds anything else.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.get(key, "a number from 0 to 4294967295", |value| u32::try_from(integer(value)?).ok())
    }

    /// A floating-point number that is finite.
    ///
    /// # Errors
    /// [`GgufError::BadValue`] where the key holds anything else.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.get(key, "a finite number", |value| value.to_f32().ok().filter(|v| v.is_finite()))
    }

    /// A truth value.
    ///
    /// # Errors
    /// [`GgufError::BadValue`] where the key holds anything else.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.get(key, "a truth value", |value| value.to_bool().ok())
    }

    /// A text.
    ///
    /// # Errors
    /// [`GgufError::BadValue`] where the key holds anything else.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        let text = |value: &Value| matches!(value, Value::String(_)).then_some(());
        self.get(key, "a text", text)?;
        Ok(self.content.metadata.get(key).and_then(|value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        }))
    }

    /// A list of texts.
    ///
    /// # Errors
    /// [`GgufError::BadValue`] where the key holds anything else.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>, GgufError> {
        self.list(key, "a list of texts", |value| value.to_string().ok().cloned())
    }

    /// A list of integers.
    ///
    /// # Errors
    /// [`GgufError::BadValue`] where the key holds anything else.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        self.list(key, "a list of integers", integer)
    }

    /// A list of floating-point numbers, none of them NaN.
    ///
    /// # Errors
    /// [`GgufError::BadValue`] where the key holds anything else.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.list(key, "a list of numbers", |value| value.to_f32().ok().filter(|v| !v.is_nan()))
    }

    fn list<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, GgufError> {
        self.get(key, expected, |value| match value {
            Value::Array(items) => items.iter().map(read).collect(),
            _ => None,
        })
    }
}

/// Turns an optional value into a required one.
///
/// # Errors
/// [`GgufError::MissingKey`] where there is none.
pub fn required<T>(key: &str, value: Option<T>) -> Result<T, GgufError> {
    value.ok_or_else(|| GgufError::MissingKey(key.into()))
}

fn integer(value: &Value) -> Option<i64> {
    match *value {
        Value::U8(v) => Some(v.into()),
        Value::I8(v) => Some(v.into()),
        Value::U16(v) => Some(v.into()),
        Value::I16(v) => Some(v.into()),
        Value::U32(v) => Some(v.into()),
        Value::I32(v) => Some(v.into()),
        Value::U64(v) => i64::try_from(v).ok(),
        Value::I64(v) => Some(v),
        _ => None,
    }
}

/// A value in few words; a list by its length, because a vocabulary would fill the screen.
fn describe(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {} values", items.len()),
        Value::String(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
        other => format!("{other:?}"),
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs candle's reader so that a panic in it becomes an error and prints nothing.
///
/// The hook is installed once and looks at a flag of its own thread, so panics elsewhere are reported as before.
fn guarded<T>(read: impl FnOnce() -> candle_core::Result<T>) -> Result<T, GgufError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                previous(info);
            }
        }));
    });
    QUIET.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(read));
    QUIET.set(false);
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(GgufError::Malformed(first_line(&error))),
        Err(_) => Err(GgufError::Malformed("its header contradicts itself".into())),
    }
}

/// The first line of a message: with `RUST_BACKTRACE` set candle appends a backtrace to its errors.
pub(crate) fn first_line(error: &impl core::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
