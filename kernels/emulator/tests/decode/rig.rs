//! A step and a pool in device memory, and the three kernels on them.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DeviceRepr};
use half::{bf16, f16};

use super::common;

/// Element types, by their numbers in `params.cuh`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    F32 = 0,
    F16 = 1,
    BF16 = 2,
    E4M3 = 3,
}

impl Type {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::E4M3 => 1,
        }
    }

    /// The largest relative error of rounding to the nearest.
    pub(crate) fn unit(self) -> f64 {
        match self {
            Self::F32 => 2.0_f64.powi(-24),
            Self::F16 => 2.0_f64.powi(-11),
            Self::BF16 => 2.0_f64.powi(-8),
            Self::E4M3 => 2.0_f64.powi(-4),
        }
    }

    /// What the queries of a pool of this type are rounded to.
    pub(crate) fn of_queries(self) -> Self {
        if self == Self::BF16 { Self::BF16 } else { Self::F16 }
    }

    pub(crate) fn encode(self, value: f32) -> Vec<u8> {
        match self {
            Self::F32 => value.to_le_bytes().to_vec(),
            Self::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            Self::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            Self::E4M3 => vec![e4m3_code(value)],
        }
    }

    pub(crate) fn decode(self, bytes: &[u8]) -> f32 {
        match self {
            Self::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
            Self::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
            Self::BF16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
            Self::E4M3 => e4m3(bytes[0]),
        }
    }

    pub(crate) fn round(self, value: f32) -> f32 {
        self.decode(&self.encode(value))
    }
}

/// The code of a number of at most 448: the nearest, ties to even.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an exponent, and eighths up to 16")]
fn e4m3_code(value: f32) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    let exponent = value.abs().max(2.0_f32.powi(-6)).log2().floor() as i32;
    // In steps of an eighth of the power of two; 16 of them are the next power's first, and the code's next.
    let steps = (value.abs() / 2.0_f32.powi(exponent - 3)).round_ties_even() as u8;
    let code = if steps < 8 { steps } else { ((exponent + 6) as u8) * 8 + steps };
    code | u8::from(value < 0.0) << 7
}

/// The number of a code: sign, four bits of exponent with a bias of 7, three of mantissa.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2.0_f32.powi(-9),
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    };
    if code & 0x80 != 0 { -size } else { size }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// Who of a row's query tokens sees whom; `query` and `key` count from the row's first.
pub(crate) type Mask = fn(query: usize, key: usize) -> bool;

/// All that a launch is told.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) pool: Type,
    pub(crate) head_dim: usize,
    pub(crate) n_tiles: usize,
    pub(crate) kv_heads: usize,
    pub(crate) group: usize,
    pub(crate) block_size: usize,
    pub(crate) rows: Vec<Row>,
    pub(crate) q: Type,
    pub(crate) out: Type,
    pub(crate) padding: usize,
    pub(crate) scale: f32,
    pub(crate) soft_cap: f32,
    pub(crate) window: usize,
    pub(crate) sinks: bool,
    pub(crate) slopes: bool,
    pub(crate) mask: Option<Mask>,
    pub(crate) ctas: usize,
    pub(crate) min_tiles: usize,
    pub(crate) split_tiles: usize,
    pub(crate) stages: usize,
    pub(crate) seed: u64,
    /// Numbers in −1 ..= 1 are multiplied by it: those of queries.
    pub(crate) q_size: f32,
    /// Entries of tables, by row and block, that are no blocks.
    pub(crate) holes: Vec<(usize, usize)>,
    /// K and V of this key of each row are NaN.
    pub(crate) nan_at: Option<usize>,
    /// Entries of the tables behind those of the longest row.
    pub(crate) spare_entries: usize,
    /// Entries of the tables, if there are too few.
    pub(crate) table_len: Option<usize>,
}

impl Case {
    pub(crate) fn new(pool: Type, head_dim: usize, group: usize, rows: &[(usize, usize)]) -> Self {
        Self {
            pool,
            head_dim,
            n_tiles: if head_dim < 256 && group > 8 { 2 } else { 1 },
            kv_heads: 2,
            group,
            block_size: 16,
            rows: rows.iter().map(|&(start, len)| Row { start, len }).collect(),
            q: Type::F32,
            out: Type::F32,
            padding: 1,
            scale: 4.0 / (head_dim as f32).sqrt(),
            soft_cap: 0.0,
            window: 0,
            sinks: false,
            slopes: false,
            mask: None,
            ctas: 7,
            min_tiles: 1,
            split_tiles: 0,
            stages: 3,
            seed: 1,
            q_size: 1.0,
            holes: Vec::new(),
            nan_at: None,
            spare_entries: 3,
            table_len: None,
        }
    }

    pub(crate) fn q_heads(&self) -> usize {
        self.kv_heads * self.group
    }

    pub(crate) fn columns(&self) -> usize {
        8 * self.n_tiles
    }

    /// The sink of a query head, natural.
    pub(crate) fn sink(&self, head: usize) -> Option<f32> {
        self.sinks.then_some((head % 5) as f32 - 2.0)
    }

    pub(crate) fn slope(&self, head: usize) -> f32 {
        if self.slopes { (-8.0 * (head + 1) as f32 / self.q_heads() as f32).exp2() } else { 0.0 }
    }

    pub(crate) fn sees(&self, row: Row, query: usize, key: usize) -> bool {
        let position = row.start + query;
        let after = key.checked_sub(row.start);
        (self.window == 0 || key + self.window > position)
            && match (self.mask, after) {
                (Some(mask), Some(key)) => mask(query, key),
                _ => key <= position,
            }
    }

    /// Element `d` of a head of a token: of K (0), V (1) or the queries (2), by the row's content.
    pub(crate) fn number(&self, part: u64, row: usize, position: usize, head: usize, d: usize) -> f32 {
        if part < 2 && self.nan_at == Some(position) {
            return f32::NAN;
        }
        let mut x = self.seed << 60 ^ part << 57 ^ (row as u64) << 49 ^ (position as u64) << 25;
        x ^= (head as u64) << 9 ^ d as u64;
        x = (x ^ x >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((x >> 40) as f32 / 8_388_608.0) - 1.0;
        if part == 2 { self.q.round(unit * self.q_size) } else { self.pool.round(unit) }
    }

    /// K (0) or V (1) of a key of a row, per KV head.
    pub(crate) fn token(&self, part: u64, row: usize, position: usize, head: usize) -> Vec<f32> {
        (0..self.head_dim).map(|d| self.number(part, row, position, head, d)).collect()
    }
}

/// Outputs `[tokens + padding, q_heads, head_dim]` and log-sum-exps `[tokens + padding, q_heads]`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Outputs {
    pub(crate) out: Vec<f32>,
    pub(crate) lse: Vec<f32>,
}

impl Outputs {
    pub(crate) fn bits(&self) -> Vec<u32> {
        self.out.iter().chain(&self.lse).map(|x| x.to_bits()).collect()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Step {
    counts: u64,
    rows: u64,
    token_rows: u64,
    slots: u64,
    copies: u64,
    tables: u64,
    table_len: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Tensor {
    data: u64,
    token_bytes: i64,
    head_bytes: i64,
    dtype: i32,
    tokens: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Plane {
    base: u64,
    block_bytes: i64,
    head_bytes: i64,
    token_bytes: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Plan {
    head: u64,
    row_spans: u64,
    spans: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Variant {
    scale: f32,
    soft_cap: f32,
    window: i32,
    has_sinks: i32,
    has_slopes: i32,
    mask_words: i32,
    mask: u64,
    sinks: [f32; 256],
    slopes: [f32; 256],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PlanParams {
    step: Step,
    plan: Plan,
    part_heads: i32,
    columns: i32,
    window: i32,
    has_mask: i32,
    block_size: i32,
    max_rows: i32,
    max_tables: i32,
    max_spans: i32,
}

// SAFETY: plain numbers, as the kernel has them.
unsafe impl DeviceRepr for PlanParams {}

#[repr(C)]
#[derive(Clone, Copy)]
struct DecodeParams {
    step: Step,
    q: Tensor,
    out: Tensor,
    lse: u64,
    k_pool: Plane,
    v_pool: Plane,
    plan: Plan,
    partials: u64,
    numbers: [i32; 8],
    ctas: i32,
    min_tiles: i32,
    split_tiles: i32,
    slots: i32,
    stages: i32,
    unused: i32,
    variant: Variant,
}

// SAFETY: as above.
unsafe impl DeviceRepr for DecodeParams {}

fn int(number: usize) -> i32 {
    i32::try_from(number).unwrap()
}

fn upload<T: DeviceRepr>(stream: &Arc<CudaStream>, items: &[T]) -> CudaSlice<T> {
    stream.clone_htod(items).unwrap()
}

/// Blocks, shuffled: entry by row and block. Behind a row's blocks, before its window and in its holes stands garbage.
fn tables(case: &Case, table_len: usize) -> (Vec<Vec<usize>>, Vec<i32>, usize) {
    let blocks = |row: &Row| (row.start + row.len).div_ceil(case.block_size);
    let total = case.rows.iter().map(blocks).sum::<usize>() + 2;
    let mut next = 0;
    // Any number prime to the total walks all blocks.
    let stride = (1..).map(|i| total / 2 + i).find(|&stride| gcd(stride, total) == 1).unwrap();
    let mut places = Vec::new();
    let mut entries = vec![0x7fff_ffff; case.rows.len().max(1) * table_len];
    for (index, row) in case.rows.iter().enumerate() {
        let own: Vec<usize> = (0..blocks(row))
            .map(|_| {
                next += 1;
                next * stride % total
            })
            .collect();
        for (number, &block) in own.iter().enumerate() {
            let oldest = if case.window == 0 { 0 } else { (row.start + 1).saturating_sub(case.window) };
            let garbage = (number + 1) * case.block_size <= oldest || case.holes.contains(&(index, number));
            if number >= table_len {
                continue;
            }
            // Below all blocks and above them.
            let nowhere = if (index + number) % 2 == 0 { int(total + number * 1000) } else { -1 - int(number) * 1000 };
            entries[index * table_len + number] = if garbage { nowhere } else { int(block) };
        }
        places.push(own);
    }
    (places, entries, total)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The pool: `[block, kv_head, 2 (K, V), token, element]`, NaN where nothing was written.
fn pool(case: &Case, places: &[Vec<usize>], total: usize) -> Vec<u8> {
    let elem = case.pool.bytes();
    let row_bytes = case.head_dim * elem;
    let head_bytes = 2 * case.block_size * row_bytes;
    let nan = case.pool.encode(f32::NAN);
    let mut bytes: Vec<u8> = nan.iter().copied().cycle().take(total * case.kv_heads * head_bytes).collect();
    for (index, row) in case.rows.iter().enumerate() {
        for position in 0..row.start + row.len {
            let block = places[index][position / case.block_size];
            for head in 0..case.kv_heads {
                for part in 0..2 {
                    let at = (block * case.kv_heads + head) * head_bytes
                        + (part * case.block_size + position % case.block_size) * row_bytes;
                    let numbers = case.token(part as u64, index, position, head);
                    for (d, number) in numbers.into_iter().enumerate() {
                        bytes[at + d * elem..][..elem].copy_from_slice(&case.pool.encode(number));
                    }
                }
            }
        }
    }
    bytes
}

fn mask_words(case: &Case) -> (usize, Vec<u64>) {
    let Some(mask) = case.mask else { return (0, vec![0]) };
    // One word more than is needed, of ones that nobody may look at.
    let words = case.rows.iter().map(|row| row.len.div_ceil(64)).max().unwrap_or(0) + 1;
    let mut all = Vec::new();
    for (row, query) in case.rows.iter().flat_map(|row| (0..row.len).map(move |query| (row, query))) {
        for word in 0..words {
            all.push((0..64).fold(0, |bits, bit| {
                let key = word * 64 + bit;
                bits | u64::from(key >= row.len || mask(query, key)) << bit
            }));
        }
    }
    all.push(u64::MAX);
    (words, all)
}

/// What a run leaves behind for the next: the device, and its functions.
pub(crate) struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
}

impl Device {
    pub(crate) fn new() -> Self {
        let (context, stream) = common::context();
        Self { context, stream }
    }

    /// Plans, decodes and merges.
    pub(crate) fn run(&self, case: &Case) -> Outputs {
        let stream = &self.stream;
        let blocks = |row: &Row| (row.start + row.len).div_ceil(case.block_size);
        let longest = case.rows.iter().map(blocks).max().unwrap_or(0);
        let table_len = case.table_len.unwrap_or(longest + case.spare_entries);
        let (places, entries, total) = tables(case, table_len);
        let bytes = pool(case, &places, total);
        let pool = upload(stream, &bytes);
        let entries = upload(stream, &entries);
        let (mut rows, mut token_rows, mut queries, mut tokens) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (index, row) in case.rows.iter().enumerate() {
            rows.extend([int(row.start), int(row.len), int(tokens), int(index)]);
            tokens += row.len;
            for position in row.start..row.start + row.len {
                token_rows.push(int(index));
                for head in 0..case.q_heads() {
                    for d in 0..case.head_dim {
                        queries.extend(case.q.encode(case.number(2, index, position, head, d)));
                    }
                }
            }
        }
        // Of queries of padding nothing may come.
        let all_tokens = tokens + case.padding;
        let row_elems = case.q_heads() * case.head_dim;
        (0..case.padding * row_elems).for_each(|_| queries.extend(case.q.encode(f32::NAN)));
        rows.extend([0; 4]);
        token_rows.push(0);
        let counts = upload(stream, &[int(case.rows.len()), int(tokens), 0, 0]);
        let (rows, token_rows, queries) =
            (upload(stream, &rows), upload(stream, &token_rows), upload(stream, &queries));
        let out_nan: Vec<u8> =
            case.out.encode(f32::NAN).into_iter().cycle().take(all_tokens * row_elems * case.out.bytes()).collect();
        let out = upload(stream, &out_nan);
        let lse = upload(stream, &vec![f32::NAN; all_tokens * case.q_heads()]);
        let parts = case.group.div_ceil(case.columns());
        let part_heads = case.group.div_ceil(parts);
        let slots =
            if case.split_tiles == 0 { 2 } else { (table_len * case.block_size).div_ceil(64 * case.split_tiles) + 1 };
        let partials = upload(stream, &vec![f32::NAN; case.ctas * slots * case.columns() * (case.head_dim + 2)]);
        let plan_memory = upload(stream, &vec![-1_i32; 4 + 8 * tokens.max(1)]);
        let row_spans = upload(stream, &vec![-1_i32; case.rows.len().max(1)]);
        let (words, mask) = mask_words(case);
        let mask = upload(stream, &mask);
        let at = |slice: &CudaSlice<i32>| slice.device_ptr(stream).0;
        let step = Step {
            counts: at(&counts),
            rows: at(&rows),
            token_rows: at(&token_rows),
            tables: at(&entries),
            table_len: table_len as i64,
            ..Step::default()
        };
        let plan = Plan { head: at(&plan_memory), row_spans: at(&row_spans), spans: at(&plan_memory) + 16 };
        let plan_params = PlanParams {
            step,
            plan,
            part_heads: int(part_heads),
            columns: int(case.columns()),
            window: int(case.window),
            has_mask: i32::from(case.mask.is_some()),
            block_size: int(case.block_size),
            max_rows: int(case.rows.len()),
            max_tables: int(case.rows.len()),
            max_spans: int(tokens),
        };
        let row_bytes = case.head_dim * case.pool.bytes();
        let head_bytes = 2 * case.block_size * row_bytes;
        let first = pool.device_ptr(stream).0;
        let plane = |base| Plane {
            base,
            block_bytes: (case.kv_heads * head_bytes) as i64,
            head_bytes: head_bytes as i64,
            token_bytes: row_bytes as i64,
        };
        let tensor = |data, of: Type| Tensor {
            data,
            token_bytes: (row_elems * of.bytes()) as i64,
            head_bytes: (case.head_dim * of.bytes()) as i64,
            dtype: of as i32,
            tokens: int(all_tokens),
        };
        let mut variant = Variant {
            scale: case.scale,
            soft_cap: case.soft_cap,
            window: int(case.window),
            has_sinks: i32::from(case.sinks),
            has_slopes: i32::from(case.slopes),
            mask_words: int(words),
            mask: if words > 0 { mask.device_ptr(stream).0 } else { 0 },
            sinks: [0.0; 256],
            slopes: [0.0; 256],
        };
        for head in 0..case.q_heads() {
            variant.sinks[head] = case.sink(head).unwrap_or(0.0);
            variant.slopes[head] = case.slope(head);
        }
        let numbers =
            [case.q_heads(), case.kv_heads, parts, part_heads, case.columns(), case.head_dim, case.block_size, total];
        let params = DecodeParams {
            step,
            q: tensor(queries.device_ptr(stream).0, case.q),
            out: tensor(out.device_ptr(stream).0, case.out),
            lse: lse.device_ptr(stream).0,
            k_pool: plane(first),
            v_pool: plane(first + (case.block_size * row_bytes) as u64),
            plan,
            partials: partials.device_ptr(stream).0,
            numbers: numbers.map(int),
            ctas: int(case.ctas),
            min_tiles: int(case.min_tiles),
            split_tiles: int(case.split_tiles),
            slots: int(slots),
            stages: int(case.stages),
            unused: 0,
            variant,
        };
        let function = common::function::<PlanParams>(&self.context, "pk_plan");
        common::launch(stream, &function, common::shape(1, 256, 2176), &plan_params);
        let name = match case.pool {
            Type::F16 => "f16",
            Type::BF16 => "bf16",
            _ => "e4m3",
        };
        let name = format!("pk_decode_{name}_{}x{}", case.head_dim, case.columns());
        let function = common::function::<DecodeParams>(&self.context, &name);
        let ring = 4 * case.stages * 32 * row_bytes;
        let shared = ring + case.columns() * (case.head_dim * 2 + 32) + 5 * 64;
        let attribute = cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(attribute, int(shared)).unwrap();
        let count = |number: usize| u32::try_from(number).unwrap();
        common::launch(stream, &function, common::shape(count(case.ctas), 128, count(shared)), &params);
        let function = common::function::<DecodeParams>(&self.context, "pk_merge");
        let ctas = count(all_tokens * case.kv_heads * parts);
        if ctas > 0 {
            common::launch(stream, &function, common::shape(ctas, 128, 0), &params);
        }
        let out = stream.clone_dtoh(&out).unwrap();
        let out = out.chunks(case.out.bytes()).map(|bytes| case.out.decode(bytes)).collect();
        Outputs { out, lse: stream.clone_dtoh(&lse).unwrap() }
    }
}
