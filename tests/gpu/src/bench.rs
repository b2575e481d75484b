//! What is measured: each shape in a graph that is replayed, over memory that lies in no cache.

use std::time::{Duration, Instant};

use half::bf16;
use paged_kv::BlockId;
use paged_kv::layout::{DType, KvLayout, KvShape};
use paged_kv::step::{BlockCopy, Step, TableRow};
use paged_kv::storage::cudarc::driver::DevicePtr;
use paged_kv::storage::{AttendParams, CudaLimits, CudaStorage, CudaTensor, CudaTensorMut, KvStorage};

use crate::device::Device;
use crate::error::Error;
use crate::report::{Report, Row};

const KV_HEADS: u32 = 8;
const BLOCK_SIZE: u32 = 16;

/// More than the caches of any GPU hold: layers take turns until they have read so much.
const COLD_BYTES: u64 = 512 << 20;

/// Query tokens of the prompt.
const PROMPT: u32 = 4096;

#[derive(Clone, Copy)]
struct Shape {
    dtype: DType,
    batch: u32,
    context: u32,
    head_dim: u32,
    group: u32,
    /// Query tokens of each row: 1, or the whole context.
    queries: u32,
}

impl Shape {
    fn kv(&self) -> KvShape {
        KvShape::new(1, KV_HEADS, self.head_dim, self.dtype)
    }

    const fn name(&self) -> &'static str {
        match self.dtype {
            DType::F8E4M3 => "e4m3",
            DType::BF16 => "bf16",
            _ => "other",
        }
    }

    /// Blocks of all rows.
    const fn blocks(&self) -> u32 {
        self.batch * self.context.div_ceil(BLOCK_SIZE)
    }
}

/// Everything, shape after shape, until the time is over.
pub(crate) fn all(device: &Device, tiny: bool, time: Duration) -> Result<Report, Error> {
    let begun = Instant::now();
    let mut report = Report { device: device.context.name()?, ..Report::default() };
    let bytes = device.bytes.min(8 << 30);
    let seconds = device.time(if tiny { 1 } else { 15 }, || device.read(bytes))?;
    report.read_gb_s = bytes as f64 / seconds / 1e9;
    let lists: [&[u32]; 4] = if tiny {
        [&[1, 2], &[64], &[64], &[4]]
    } else {
        [&[1, 8, 32, 128, 256], &[1024, 4096, 16_384, 65_536], &[64, 128], &[1, 4, 8]]
    };
    let [batches, contexts, head_dims, groups] = lists;
    let mut shapes = Vec::new();
    // What is asked for most comes first.
    for &group in groups.iter().rev() {
        for &head_dim in head_dims.iter().rev() {
            for dtype in [DType::BF16, DType::F8E4M3] {
                for &batch in batches {
                    let of = |&context| Shape { dtype, batch, context, head_dim, group, queries: 1 };
                    shapes.extend(contexts.iter().map(of));
                }
            }
        }
    }
    let prompt = if tiny { 48 } else { PROMPT };
    let prompt =
        Shape { dtype: DType::BF16, batch: 1, context: prompt, head_dim: head_dims[0], group: 4, queries: prompt };
    shapes.insert(0, Shape { head_dim: *head_dims.last().unwrap_or(&64), ..prompt });
    moved(device, &mut report, tiny)?;
    for shape in shapes {
        let Shape { batch, context, head_dim, group, .. } = shape;
        let name = format!("{} {batch}x{context} head_dim {head_dim} group {group}", shape.name());
        if begun.elapsed() > time {
            report.skipped.push(name + " (no time)");
            continue;
        }
        match attention(device, shape, tiny)? {
            Some(seconds) => report.rows.push(row(&report, shape, seconds)?),
            None => report.skipped.push(name + " (no room)"),
        }
    }
    Ok(report)
}

fn row(report: &Report, shape: Shape, seconds: f64) -> Result<Row, Error> {
    let Shape { batch, context, head_dim, group, queries, .. } = shape;
    let bytes = shape.kv().bytes_per_token()? * u64::from(batch) * u64::from(context);
    let gb_s = bytes as f64 / seconds / 1e9;
    // A query at position p sees p + 1 keys; two products of head_dim multiply-adds for each.
    let seen = if queries == 1 { f64::from(context) } else { f64::from(queries) * f64::from(queries + 1) / 2.0 };
    let flop = f64::from(batch) * seen * f64::from(KV_HEADS * group) * f64::from(head_dim) * 4.0;
    Ok(Row {
        what: if queries == 1 { "decode" } else { "prefill" },
        dtype: shape.name(),
        batch,
        context,
        head_dim,
        group,
        us: seconds * 1e6,
        gb_s,
        of_read: gb_s / report.read_gb_s,
        tflop_s: flop / seconds / 1e12,
    })
}

/// A storage of some layers in the device's memory.
fn storage(device: &Device, kv: &KvShape, blocks: u32, limits: CudaLimits) -> Result<CudaStorage, Error> {
    let layout = KvLayout::per_layer(kv, blocks, BLOCK_SIZE)?;
    let mut first = device.memory;
    let place = |elems: &u64| {
        let here = first;
        first += (elems * kv.dtype.bytes()).next_multiple_of(256);
        here
    };
    let firsts: Vec<u64> = layout.allocations().iter().map(place).collect();
    // SAFETY: the caller has seen to it that the layers fit the memory, which stays; one storage uses it at a time.
    Ok(unsafe { CudaStorage::from_raw(&device.context, layout, limits, &firsts) }?)
}

/// Seconds of one layer's attention, or nothing where the pool is too small.
fn attention(device: &Device, shape: Shape, tiny: bool) -> Result<Option<f64>, Error> {
    let Shape { batch, context, head_dim, group, queries, .. } = shape;
    let mut kv = shape.kv();
    let layer_bytes = (kv.bytes_per_block(BLOCK_SIZE)? * u64::from(shape.blocks())).next_multiple_of(256);
    let fit = device.bytes / layer_bytes;
    if fit == 0 {
        return Ok(None);
    }
    let layers = COLD_BYTES.div_ceil(layer_bytes).min(fit).clamp(1, if tiny { 2 } else { 32 });
    kv.num_layers = u32::try_from(layers).unwrap_or(1);
    let limits = CudaLimits::new(batch, batch * queries, context.div_ceil(BLOCK_SIZE));
    let mut storage = storage(device, &kv, shape.blocks(), limits)?;

    let mut ids: Vec<_> = (0..shape.blocks()).map(BlockId::new).collect();
    shuffle(&mut ids);
    let rows: Vec<_> = ids
        .chunks(context.div_ceil(BLOCK_SIZE) as usize)
        .map(|blocks| TableRow { start: context - queries, len: queries, blocks })
        .collect();
    let step = Step::from_tables(BLOCK_SIZE, &rows, &[])?;
    storage.prepare((&device.stream).into(), &step, batch)?;

    let heads = KV_HEADS * group;
    let tensor = [(batch * queries) as usize, heads as usize, head_dim as usize];
    let len = tensor.iter().product::<usize>();
    let q = device.stream.clone_htod(&vec![0x3c3c_u16; len])?;
    let out = device.stream.alloc_zeros::<u16>(len)?;
    let (q, out) = (q.device_ptr(&device.stream), out.device_ptr(&device.stream));
    let params = AttendParams::new(head_dim);
    let graph = device.capture(|| {
        for layer in 0..kv.num_layers {
            // SAFETY: device memory of this shape, which stays until the graph has run; one stream uses it.
            let q = unsafe { CudaTensor::from_raw::<bf16>(q.0, tensor) };
            // SAFETY: as above.
            let out = unsafe { CudaTensorMut::from_raw::<bf16>(out.0, tensor) };
            storage.attend((&device.stream).into(), layer, q, out, &params)?;
        }
        Ok(())
    })?;
    let seconds = device.time(if tiny { 1 } else { 7 }, || Ok(graph.launch()?))?;
    Ok(Some(seconds / layers as f64))
}

/// Copies of blocks inside the pool, and swaps out and in.
fn moved(device: &Device, report: &mut Report, tiny: bool) -> Result<(), Error> {
    let (layers, blocks, moved) = if tiny { (2, 16, 4) } else { (32, 512, 128) };
    let kv = KvShape::new(layers, KV_HEADS, 128, DType::BF16);
    let bytes = kv.bytes_per_block(BLOCK_SIZE)?;
    if bytes * u64::from(blocks) + 256 * u64::from(layers) > device.bytes {
        report.skipped.push("copies and swaps (no room)".to_owned());
        return Ok(());
    }
    let limits = CudaLimits::new(1, 1, 1).with_copies(moved);
    let mut storage = storage(device, &kv, blocks, limits)?;
    let rounds = if tiny { 1 } else { 15 };
    let id = BlockId::new;
    let copies: Vec<_> = (0..moved).map(|block| BlockCopy { src: id(block), dst: id(blocks - 1 - block) }).collect();
    let step = Step::from_tables(BLOCK_SIZE, &[], &copies)?;
    let stream = &device.stream;
    let copy = device.time(rounds, || {
        storage.prepare(stream.into(), &step, 0)?;
        Ok(storage.copy_blocks(stream.into())?)
    })?;
    let ids: Vec<_> = (0..moved).map(id).collect();
    let mut records = storage.records(moved as usize)?;
    let out = device.time(rounds, || Ok(storage.read_blocks(stream.into(), &ids, &mut records)?))?;
    let back = device.time(rounds, || Ok(storage.write_blocks(stream.into(), &ids, &mut records)?))?;
    for (what, seconds) in [("copy", copy), ("swap out", out), ("swap in", back)] {
        let gb_s = (bytes * u64::from(moved)) as f64 / seconds / 1e9;
        let of_read = gb_s / report.read_gb_s;
        let (batch, us) = (moved, seconds * 1e6);
        report.rows.push(Row {
            what,
            dtype: "bf16",
            batch,
            context: BLOCK_SIZE,
            head_dim: 128,
            group: 1,
            us,
            gb_s,
            of_read,
            tflop_s: 0.0,
        });
    }
    Ok(())
}

/// The same order every time, and no pattern in it (splitmix64).
fn shuffle(ids: &mut [BlockId]) {
    let mut state = 1_u64;
    for last in (1..ids.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let at = (x ^ (x >> 31)) % (last as u64 + 1);
        ids.swap(last, usize::try_from(at).unwrap_or(last));
    }
}
