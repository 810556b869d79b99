// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Two block devices whose data is in RAM, and whose requests take as long as a model says, by the kernel's own clock:
 *
 * /dev/spindle  A disk with the mechanics, the command queue and the read buffer of lab/model. drive.h has the drive: header.awk makes
 *               it from a drive file. Its write cache is off, so that a write is complete when it is on the medium. Flushes are taken
 *               all the same, as a drive takes them: they come after the writes before them, and cost a command.
 * /dev/flash    An SSD of several channels. Each request has one of them for its time; all share one bus. Flushes come after
 *               the writes before them. With no time for anything it completes each request at once.
 *
 * Discards cost nothing, and free the RAM. RAM is allocated as it is written, a page at a time.
 */

#include <linux/blk-mq.h>
#include <linux/highmem.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/vmalloc.h>
#include <linux/xarray.h>

#include "drive.h"

static unsigned int disk_mib;
module_param(disk_mib, uint, 0444);
MODULE_PARM_DESC(disk_mib, "Size of the disk in MiB; 0: there is none");
static char *disk_name = "spindle";
module_param(disk_name, charp, 0444);
MODULE_PARM_DESC(disk_name, "Name of the disk, in /dev and in /proc");
static unsigned int ssd_mib;
module_param(ssd_mib, uint, 0444);
MODULE_PARM_DESC(ssd_mib, "Size of the SSD in MiB; 0: there is none");
static unsigned int ssd_read_us = 80;
module_param(ssd_read_us, uint, 0444);
static unsigned int ssd_write_us[2] = { 20, 80 };
module_param_array(ssd_write_us, uint, NULL, 0444);
MODULE_PARM_DESC(ssd_write_us, "The shortest and the longest write; each between is as likely as any other");
static unsigned int ssd_flush_us = 20;
module_param(ssd_flush_us, uint, 0444);
static unsigned int ssd_mb_per_s = 1000;
module_param(ssd_mb_per_s, uint, 0444);
MODULE_PARM_DESC(ssd_mb_per_s, "The rate of the bus; 0: it takes no time");
static unsigned int ssd_channels = 8;
module_param(ssd_channels, uint, 0444);
static unsigned int seed = 1;
module_param(seed, uint, 0444);
MODULE_PARM_DESC(seed, "Draws the times of the SSD's writes");
static unsigned int record;
module_param(record, uint, 0444);
MODULE_PARM_DESC(record, "How many of the disk's first requests /proc/spindle lists");

#define CHANNELS_MAX 64
/* For so long nearer requests may pass over one. */
#define PASSED_OVER_MAX_NS (2 * NSEC_PER_SEC)

/* ---------------------------------------------------------------- data */

struct store {
	spinlock_t lock;
	struct xarray pages;
};

static void store_init(struct store *store)
{
	spin_lock_init(&store->lock);
	xa_init(&store->pages);
}

static void store_drop(struct store *store, unsigned long first, unsigned long end)
{
	struct page *page;
	unsigned long index;

	if (first >= end)
		return;
	xa_for_each_range(&store->pages, index, page, first, end - 1) {
		xa_erase(&store->pages, index);
		__free_page(page);
	}
}

static struct page *store_page(struct store *store, unsigned long index, bool make)
{
	struct page *page = xa_load(&store->pages, index);

	if (page || !make)
		return page;
	page = alloc_page(GFP_ATOMIC | __GFP_ZERO);
	if (page && xa_err(xa_store(&store->pages, index, page, GFP_ATOMIC))) {
		__free_page(page);
		page = NULL;
	}
	return page;
}

static blk_status_t store_move(struct store *store, struct request *rq)
{
	bool write = op_is_write(req_op(rq));
	u64 at = blk_rq_pos(rq) << SECTOR_SHIFT;
	struct req_iterator iter;
	struct bio_vec vec;

	rq_for_each_segment(vec, rq, iter) {
		char *bytes = bvec_kmap_local(&vec);
		unsigned int done = 0;

		while (done < vec.bv_len) {
			unsigned int offset = offset_in_page(at);
			unsigned int count = min_t(unsigned int, vec.bv_len - done, PAGE_SIZE - offset);
			struct page *page = store_page(store, at >> PAGE_SHIFT, write);

			if (!page && write) {
				kunmap_local(bytes);
				return BLK_STS_IOERR;
			}
			if (!page)
				memset(bytes + done, 0, count);
			else if (write)
				memcpy(page_address(page) + offset, bytes + done, count);
			else
				memcpy(bytes + done, page_address(page) + offset, count);
			done += count;
			at += count;
		}
		kunmap_local(bytes);
	}
	return BLK_STS_OK;
}

/* The end of every request, in a soft interrupt: its data moves when its time is over. */
static void finish(struct store *store, struct request *rq)
{
	u64 at = blk_rq_pos(rq) << SECTOR_SHIFT;
	blk_status_t status = BLK_STS_OK;

	spin_lock(&store->lock);
	switch (req_op(rq)) {
	case REQ_OP_READ:
	case REQ_OP_WRITE:
		status = store_move(store, rq);
		break;
	case REQ_OP_DISCARD:
		store_drop(store, (at + PAGE_SIZE - 1) >> PAGE_SHIFT, (at + blk_rq_bytes(rq)) >> PAGE_SHIFT);
		break;
	default:
		break;
	}
	spin_unlock(&store->lock);
	if (status)
		pr_err("modelled: no RAM for a page: give the machine more\n");
	blk_mq_end_request(rq, status);
}

/* ---------------------------------------------------------------- mechanics */

struct drive_zone {
	u64 first_lba;
	/* Of its first sector, in nanoseconds of a revolution. */
	u64 first_angle;
	u32 first_cylinder, cylinders, per_track, track_skew, cylinder_skew;
};

static struct drive_zone zones[ARRAY_SIZE(zone_shapes)];
static u64 drive_sectors;
static u32 drive_cylinders;
/* Of each distance in cylinders. */
static u32 *seek_times;

struct arm {
	u32 cylinder, head;
};

struct spot {
	struct arm arm;
	u32 sector, per_track;
	/* Sectors from here to the end of the track. */
	u32 run;
	u64 track_angle;
};

/* From sector 0 of a track to another one; exact at the end of the track. */
static u64 offset_of(u32 sector, u32 per_track)
{
	return (u64)sector * REVOLUTION_NS / per_track;
}

static u64 angle_of_track(const struct drive_zone *zone, u64 track)
{
	u64 cylinder_changes = track / HEADS;
	u64 skew = (track - cylinder_changes) * zone->track_skew + cylinder_changes * zone->cylinder_skew;

	return (zone->first_angle + offset_of(skew % zone->per_track, zone->per_track)) % REVOLUTION_NS;
}

static u32 seek_time(u32 distance)
{
	s64 x0, y0, x1, y1, time;
	unsigned int right = 0;

	if (distance == 0)
		return 0;
	if (ARRAY_SIZE(seek_points) == 1)
		return seek_points[0].ns;
	while (right < ARRAY_SIZE(seek_points) && seek_points[right].distance < distance)
		right++;
	right = clamp_t(unsigned int, right, 1, ARRAY_SIZE(seek_points) - 1);
	x0 = seek_points[right - 1].distance;
	y0 = seek_points[right - 1].ns;
	x1 = seek_points[right].distance;
	y1 = seek_points[right].ns;
	time = y0 + (y1 - y0) * ((s64)distance - x0) / (x1 - x0);
	return clamp_t(s64, time, 0, U32_MAX);
}

static int make_drive(void)
{
	u32 distance;
	int i;

	for (i = 0; i < ARRAY_SIZE(zones); i++) {
		struct drive_zone *zone = &zones[i];

		zone->per_track = zone_shapes[i].per_track;
		zone->cylinders = zone_shapes[i].cylinders;
		zone->track_skew = zone_shapes[i].track_skew;
		zone->cylinder_skew = zone_shapes[i].cylinder_skew;
		zone->first_lba = drive_sectors;
		zone->first_cylinder = drive_cylinders;
		/* It goes on where the zone before it ends, so that a transfer loses no revolution. */
		if (i > 0)
			zone->first_angle = (angle_of_track(zone - 1, (u64)zone[-1].cylinders * HEADS - 1) +
					     offset_of(zone->cylinder_skew, zone->per_track)) % REVOLUTION_NS;
		drive_sectors += (u64)zone->cylinders * HEADS * zone->per_track;
		drive_cylinders += zone->cylinders;
	}
	seek_times = vmalloc_array(drive_cylinders, sizeof(*seek_times));
	if (!seek_times)
		return -ENOMEM;
	for (distance = 0; distance < drive_cylinders; distance++)
		seek_times[distance] = seek_time(distance);
	return 0;
}

static struct spot locate(u64 lba)
{
	const struct drive_zone *zone = zones;
	struct spot spot;
	u64 track;

	while (zone + 1 < zones + ARRAY_SIZE(zones) && zone[1].first_lba <= lba)
		zone++;
	track = (lba - zone->first_lba) / zone->per_track;
	spot.sector = (lba - zone->first_lba) % zone->per_track;
	spot.per_track = zone->per_track;
	spot.run = spot.per_track - spot.sector;
	spot.arm.cylinder = zone->first_cylinder + track / HEADS;
	spot.arm.head = track % HEADS;
	spot.track_angle = angle_of_track(zone, track);
	return spot;
}

/* Until the sector comes under the head. */
static u64 rotation_to(const struct spot *spot, u64 at)
{
	u64 angle = (spot->track_angle + offset_of(spot->sector, spot->per_track)) % REVOLUTION_NS;
	u64 now = at % REVOLUTION_NS;

	return angle >= now ? angle - now : angle + REVOLUTION_NS - now;
}

static u64 passing(const struct spot *spot, u32 count)
{
	return offset_of(spot->sector + count, spot->per_track) - offset_of(spot->sector, spot->per_track);
}

/* Until the heads can read or write on the track. */
static u64 approach(struct arm from, struct arm to, bool write)
{
	u32 distance = abs_diff(from.cylinder, to.cylinder);
	s64 time = distance ? seek_times[distance] : 0;

	if (distance == 0 && from.head == to.head)
		return 0;
	if (from.head != to.head)
		time = max_t(s64, time, HEAD_SWITCH_NS);
	if (write)
		time += distance > 1 ? WRITE_SETTLE_NS : WRITE_SETTLE_TRACK_NS;
	return max_t(s64, time, 0);
}

struct passage {
	/* When the first sector had passed, and the last one. */
	u64 first, end;
	struct arm arm;
};

/* The heads are free from `at` on, and the first sector is not passed before `data_at`. */
static struct passage transfer(struct arm arm, u64 lba, u64 sectors, bool write, u64 at, u64 data_at)
{
	struct passage passage = { 0 };
	u64 now = at;

	for (;;) {
		struct spot spot = locate(lba);
		u32 count = min_t(u64, sectors, spot.run);

		now += approach(arm, spot.arm, write);
		if (!passage.first)
			now = max(now, data_at);
		now += rotation_to(&spot, now);
		if (!passage.first)
			passage.first = now + passing(&spot, 1);
		now += passing(&spot, count);
		arm = spot.arm;
		lba += count;
		sectors -= count;
		if (sectors == 0)
			break;
	}
	passage.end = now;
	passage.arm = arm;
	return passage;
}

static u64 bus_time(u64 sectors)
{
	return sectors * BUS_PS_PER_SECTOR / 1000;
}

/* How long before the first sector passes the bus has to begin, so that no data of a write comes too late. */
static u64 bus_lead(u64 lba, u64 sectors)
{
	u64 passes = REVOLUTION_NS / locate(lba).per_track * (sectors - 1);
	u64 bus = bus_time(sectors);

	return max(bus > passes ? bus - passes : 0, bus_time(1));
}

/* ---------------------------------------------------------------- the disk's read buffer */

struct segment {
	u64 start, end, used;
	bool written;
};

/* Reading ahead: it runs while next < limit, and waits there. */
struct ahead {
	bool active;
	unsigned int segment;
	u64 next, limit;
	/* When the sector before `next` had passed, and on which track. */
	u64 at;
	struct arm arm;
};

struct command {
	struct list_head list;
	u64 arrival;
	struct spot spot;
	/* Of the SSD. */
	struct hrtimer timer;
};

struct entry {
	u64 arrival, end, lba, sectors;
	bool write;
};

static struct disk {
	struct store store;
	struct blk_mq_tag_set tags;
	struct gendisk *gendisk;
	spinlock_t lock;
	struct hrtimer timer;
	/* The clock of the model begins with the first request. */
	bool begun;
	u64 origin;
	struct list_head waiting;
	struct request *served;
	u64 served_end, free_at;
	struct arm arm;
	bool wrote_last;
	struct segment segments[SEGMENTS];
	u64 uses;
	struct ahead ahead;
	struct entry *entries;
	unsigned int recorded;
} disk;

static void extend(struct segment *segment, u64 end)
{
	segment->end = end;
	if (end > SEGMENT_SECTORS)
		segment->start = max_t(u64, segment->start, end - SEGMENT_SECTORS);
}

static void touch(unsigned int segment)
{
	disk.segments[segment].used = ++disk.uses;
}

/* Moves a read-ahead on, until `until`. Returns the track on which the heads are then: the next one, if they are on the way. */
static struct arm read_on(struct ahead *ahead, u64 until)
{
	struct arm stopped = ahead->arm;

	if (ahead->at >= until)
		return stopped;
	while (ahead->next < ahead->limit) {
		struct spot spot = locate(ahead->next);
		u64 start = ahead->at + approach(ahead->arm, spot.arm, false);
		u32 count, fit;

		stopped = spot.arm;
		start += rotation_to(&spot, start);
		if (start >= until)
			break;
		fit = spot.run;
		if (start + passing(&spot, fit) > until) {
			u64 reach = offset_of(spot.sector, spot.per_track) + (until - start);

			fit = ((reach + 1) * spot.per_track - 1) / REVOLUTION_NS - spot.sector;
		}
		count = min_t(u64, ahead->limit - ahead->next, fit);
		if (count > 0) {
			ahead->next += count;
			ahead->at = start + passing(&spot, count);
			ahead->arm = spot.arm;
		}
		if (count < spot.run)
			break;
	}
	return stopped;
}

static void catch_up(u64 now)
{
	struct ahead *ahead = &disk.ahead;

	if (!ahead->active)
		return;
	read_on(ahead, now);
	extend(&disk.segments[ahead->segment], ahead->next);
}

static void take_arm(u64 now)
{
	if (!disk.ahead.active)
		return;
	catch_up(now);
	disk.arm = read_on(&disk.ahead, now);
	disk.ahead.active = false;
}

enum found { HIT, STREAM, MISS };

/* Sets `segment` to the one that holds the first sectors, up to `from`; -1: none. */
static enum found look_up(u64 start, u64 end, u64 *from, int *segment)
{
	enum found found = MISS;
	int i;

	*from = start;
	*segment = -1;
	for (i = 0; i < SEGMENTS; i++) {
		const struct segment *s = &disk.segments[i];

		/* The end counts as inside, for a read that goes on where a read-ahead is. */
		if (s->start == s->end || start < s->start || start > s->end)
			continue;
		if (end <= s->end) {
			*segment = i;
			return HIT;
		}
		if (disk.ahead.active && disk.ahead.segment == i) {
			found = STREAM;
		} else if (found == MISS && s->end > *from) {
			*from = s->end;
			*segment = i;
		}
	}
	return found;
}

static u64 ahead_limit(u64 end)
{
	return min_t(u64, end + READ_AHEAD_SECTORS, drive_sectors);
}

static void clear(u64 start, u64 end)
{
	int i;

	for (i = 0; i < SEGMENTS; i++) {
		struct segment *s = &disk.segments[i];

		if (s->start < end && start < s->end)
			memset(s, 0, sizeof(*s));
	}
}

/* The least recently used segment; for a write, of the written ones, once there are enough. */
static unsigned int victim(bool write)
{
	unsigned int i, written = 0;
	int best = -1;

	for (i = 0; i < SEGMENTS; i++)
		written += disk.segments[i].written;
	for (i = 0; i < SEGMENTS; i++) {
		if (write && written >= WRITE_SEGMENTS && !disk.segments[i].written)
			continue;
		if (best < 0 || disk.segments[i].used < disk.segments[best].used)
			best = i;
	}
	return max(best, 0);
}

static void fill(unsigned int segment, u64 start, u64 end, bool written)
{
	struct segment *s = &disk.segments[segment];

	s->start = start;
	s->written = written;
	extend(s, end);
	touch(segment);
}

static void note_written(u64 start, u64 end)
{
	int i, appended = -1;

	if (WRITE_SEGMENTS == 0) {
		clear(start, end);
		return;
	}
	for (i = 0; i < SEGMENTS && appended < 0; i++) {
		const struct segment *s = &disk.segments[i];

		if (s->written && s->start != s->end && s->end == start)
			appended = i;
	}
	clear(start, end);
	if (appended >= 0 && disk.segments[appended].start != disk.segments[appended].end) {
		extend(&disk.segments[appended], end);
		touch(appended);
	} else {
		fill(victim(true), start, end, true);
	}
}

/* ---------------------------------------------------------------- the disk at work */

static u64 overhead(bool write)
{
	return write ? overhead_write_ns[disk.wrote_last] : overhead_read_ns[disk.wrote_last];
}

static u64 serve_hit(u64 begin, u64 start, u64 end, unsigned int segment, u64 now)
{
	struct ahead *ahead = &disk.ahead;

	touch(segment);
	if (ahead->active && ahead->segment == segment && (ahead->next < ahead->limit || RESUME_ON_HIT)) {
		u64 limit = max(ahead->limit, ahead_limit(end));

		if (ahead->next == ahead->limit && limit > ahead->next)
			ahead->at = max(ahead->at, now);
		ahead->limit = limit;
	}
	return begin + bus_time(end - start);
}

/* Goes on where the read-ahead is. */
static u64 serve_stream(u64 begin, u64 start, u64 end)
{
	struct ahead *ahead = &disk.ahead;
	u64 at = ahead->next < ahead->limit ? ahead->at : max(begin, ahead->at);
	struct passage passage = transfer(ahead->arm, ahead->next, end - ahead->next, false, at, at);

	extend(&disk.segments[ahead->segment], end);
	ahead->limit = max(ahead->limit, ahead_limit(end));
	ahead->next = end;
	ahead->at = passage.end;
	ahead->arm = passage.arm;
	touch(ahead->segment);
	return max(begin + bus_time(end - start), passage.end + bus_time(1));
}

static u64 serve_medium(u64 begin, u64 start, u64 end, u64 from, int segment)
{
	struct passage passage;
	u64 bus;

	take_arm(begin);
	passage = transfer(disk.arm, from, end - from, false, begin, begin);
	disk.arm = passage.arm;
	bus = (segment < 0 ? passage.first : begin) + bus_time(end - start);
	if (segment >= 0) {
		extend(&disk.segments[segment], end);
		touch(segment);
	} else {
		clear(start, end);
		segment = victim(false);
		fill(segment, start, end, false);
	}
	disk.ahead = (struct ahead){
		.active = true, .segment = segment, .next = end, .limit = ahead_limit(end),
		.at = passage.end, .arm = passage.arm,
	};
	return max(bus, passage.end + bus_time(1));
}

static u64 serve_read(u64 start, u64 known, u64 lba, u64 end)
{
	u64 begin = max(start, known + overhead_hit_ns[disk.wrote_last]);
	u64 from;
	int segment;

	catch_up(start);
	switch (look_up(lba, end, &from, &segment)) {
	case HIT:
		return serve_hit(begin, lba, end, segment, start);
	case STREAM:
		return serve_stream(begin, lba, end);
	default:
		return serve_medium(max(start, known + overhead(false)), lba, end, from, segment);
	}
}

static u64 serve_write(u64 start, u64 known, u64 lba, u64 end)
{
	u64 decoded = known + overhead(true);
	u64 begin = max(start, decoded);
	struct passage passage;

	take_arm(begin);
	passage = transfer(disk.arm, lba, end - lba, true, begin, decoded + bus_lead(lba, end - lba));
	disk.arm = passage.arm;
	note_written(lba, end);
	return max(passage.end, decoded + bus_time(end - lba));
}

static u64 rq_end(struct request *rq)
{
	return blk_rq_pos(rq) + blk_rq_sectors(rq);
}

/* Until the first sector would pass, if the request were next. */
static u64 positioning(u64 start, struct request *rq)
{
	struct command *command = blk_mq_rq_to_pdu(rq);
	bool write = req_op(rq) == REQ_OP_WRITE;
	u64 begin = max(start, command->arrival + overhead(write));
	u64 moving, from;
	int segment;

	if (!write) {
		enum found found = look_up(blk_rq_pos(rq), rq_end(rq), &from, &segment);

		if (found == HIT || (found == STREAM && disk.ahead.next < disk.ahead.limit))
			return 0;
	}
	moving = approach(disk.ahead.active ? disk.ahead.arm : disk.arm, command->spot.arm, write);
	return begin - start + moving + rotation_to(&command->spot, begin + moving);
}

/* The request that is cheapest next. A flush comes before what came after it, and after the writes before it. */
static struct command *choose(u64 start)
{
	struct command *command, *best = NULL;
	bool writes = false;
	u64 least = U64_MAX;

	command = list_first_entry(&disk.waiting, struct command, list);
	if (list_is_singular(&disk.waiting) || start - min(start, command->arrival) > PASSED_OVER_MAX_NS)
		return command;
	catch_up(start);
	list_for_each_entry(command, &disk.waiting, list) {
		struct request *rq = blk_mq_rq_from_pdu(command);
		u64 cost;

		if (req_op(rq) == REQ_OP_FLUSH) {
			if (!writes)
				return command;
			continue;
		}
		writes |= req_op(rq) == REQ_OP_WRITE;
		cost = positioning(start, rq);
		if (cost < least) {
			least = cost;
			best = command;
		}
	}
	return best;
}

static void serve_next(void)
{
	struct command *command;
	struct request *rq;
	u64 start, lba;

	if (list_empty(&disk.waiting))
		return;
	start = max(disk.free_at, list_first_entry(&disk.waiting, struct command, list)->arrival);
	command = choose(start);
	list_del(&command->list);
	rq = blk_mq_rq_from_pdu(command);
	lba = blk_rq_pos(rq);
	switch (req_op(rq)) {
	case REQ_OP_FLUSH:
		disk.served_end = max(start, command->arrival + overhead_hit_ns[disk.wrote_last]);
		break;
	case REQ_OP_WRITE:
		disk.served_end = serve_write(start, command->arrival, lba, rq_end(rq));
		disk.wrote_last = true;
		break;
	default:
		disk.served_end = serve_read(start, command->arrival, lba, rq_end(rq));
		disk.wrote_last = false;
		break;
	}
	disk.served = rq;
	if (disk.recorded < record && req_op(rq) != REQ_OP_FLUSH)
		disk.entries[disk.recorded++] = (struct entry){
			command->arrival, disk.served_end, lba, blk_rq_sectors(rq), req_op(rq) == REQ_OP_WRITE,
		};
}

static enum hrtimer_restart disk_wakes(struct hrtimer *timer)
{
	struct command *command, *next;
	unsigned long flags;
	LIST_HEAD(done);
	bool again;

	spin_lock_irqsave(&disk.lock, flags);
	while (disk.served && disk.origin + disk.served_end <= ktime_get_ns()) {
		command = blk_mq_rq_to_pdu(disk.served);
		list_add_tail(&command->list, &done);
		disk.served = NULL;
		disk.free_at = disk.served_end;
		serve_next();
	}
	again = disk.served;
	if (again)
		hrtimer_set_expires(timer, ns_to_ktime(disk.origin + disk.served_end));
	spin_unlock_irqrestore(&disk.lock, flags);
	list_for_each_entry_safe(command, next, &done, list)
		blk_mq_complete_request(blk_mq_rq_from_pdu(command));
	return again ? HRTIMER_RESTART : HRTIMER_NORESTART;
}

static blk_status_t disk_queue(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *data)
{
	struct command *command = blk_mq_rq_to_pdu(data->rq);
	unsigned long flags;
	u64 now = ktime_get_ns();

	blk_mq_start_request(data->rq);
	if (req_op(data->rq) == REQ_OP_DISCARD) {
		blk_mq_complete_request(data->rq);
		return BLK_STS_OK;
	}
	spin_lock_irqsave(&disk.lock, flags);
	if (!disk.begun) {
		disk.begun = true;
		disk.origin = now;
	}
	command->arrival = now - disk.origin;
	command->spot = locate(blk_rq_pos(data->rq));
	list_add_tail(&command->list, &disk.waiting);
	if (!disk.served) {
		serve_next();
		hrtimer_start(&disk.timer, ns_to_ktime(disk.origin + disk.served_end), HRTIMER_MODE_ABS_HARD);
	}
	spin_unlock_irqrestore(&disk.lock, flags);
	return BLK_STS_OK;
}

static void disk_complete(struct request *rq)
{
	finish(&disk.store, rq);
}

static const struct blk_mq_ops disk_ops = { .queue_rq = disk_queue, .complete = disk_complete };

static int list_requests(struct seq_file *file, void *unused)
{
	unsigned int i;

	seq_puts(file, "at_ns,device,op,lba,sectors,response_ns\n");
	for (i = 0; i < disk.recorded; i++) {
		const struct entry *e = &disk.entries[i];

		seq_printf(file, "%llu,0,%s,%llu,%llu,%llu\n", e->arrival, e->write ? "write" : "read", e->lba, e->sectors,
			   e->end - e->arrival);
	}
	return 0;
}

/* ---------------------------------------------------------------- the SSD */

static struct {
	struct store store;
	struct blk_mq_tag_set tags;
	struct gendisk *gendisk;
	spinlock_t lock;
	u64 channels[CHANNELS_MAX];
	u64 bus, writes_end;
	u32 draws;
} ssd;

static u64 ssd_latency(bool write)
{
	if (!write)
		return ssd_read_us * 1000ULL;
	ssd.draws = ssd.draws * 1664525 + 1013904223;
	return ssd_write_us[0] * 1000ULL + ((u64)(ssd_write_us[1] - ssd_write_us[0]) * 1000 * (ssd.draws >> 8) >> 24);
}

static u64 ssd_end(struct request *rq, u64 now)
{
	bool write = req_op(rq) == REQ_OP_WRITE;
	u64 begin, end, *channel = ssd.channels;
	unsigned int i;

	if (req_op(rq) == REQ_OP_DISCARD)
		return now;
	if (req_op(rq) == REQ_OP_FLUSH)
		return max(now, ssd.writes_end) + ssd_flush_us * 1000ULL;
	for (i = 1; i < ssd_channels; i++)
		if (ssd.channels[i] < *channel)
			channel = &ssd.channels[i];
	begin = max(now, *channel);
	ssd.bus = max(ssd.bus, begin);
	if (ssd_mb_per_s)
		ssd.bus += blk_rq_bytes(rq) * 1000ULL / ssd_mb_per_s;
	end = max(begin + ssd_latency(write), ssd.bus);
	*channel = end;
	if (write)
		ssd.writes_end = max(ssd.writes_end, end);
	return end;
}

static enum hrtimer_restart ssd_wakes(struct hrtimer *timer)
{
	struct command *command = container_of(timer, struct command, timer);

	blk_mq_complete_request(blk_mq_rq_from_pdu(command));
	return HRTIMER_NORESTART;
}

static blk_status_t ssd_queue(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *data)
{
	struct command *command = blk_mq_rq_to_pdu(data->rq);
	unsigned long flags;
	u64 now = ktime_get_ns();
	u64 end;

	blk_mq_start_request(data->rq);
	spin_lock_irqsave(&ssd.lock, flags);
	end = ssd_end(data->rq, now);
	spin_unlock_irqrestore(&ssd.lock, flags);
	if (end > now)
		hrtimer_start(&command->timer, ns_to_ktime(end), HRTIMER_MODE_ABS_HARD);
	else
		blk_mq_complete_request(data->rq);
	return BLK_STS_OK;
}

static void ssd_complete(struct request *rq)
{
	finish(&ssd.store, rq);
}

static int ssd_request_init(struct blk_mq_tag_set *set, struct request *rq, unsigned int hctx, unsigned int node)
{
	struct command *command = blk_mq_rq_to_pdu(rq);

	hrtimer_init(&command->timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_HARD);
	command->timer.function = ssd_wakes;
	return 0;
}

static const struct blk_mq_ops ssd_ops = { .queue_rq = ssd_queue, .complete = ssd_complete, .init_request = ssd_request_init };

/* ---------------------------------------------------------------- the module */

static const struct block_device_operations device_ops = { .owner = THIS_MODULE };

static int add_device(const char *name, struct blk_mq_tag_set *tags, struct gendisk **gendisk, struct queue_limits *limits,
		      unsigned int mib)
{
	int error;

	tags->nr_hw_queues = 1;
	tags->numa_node = NUMA_NO_NODE;
	tags->cmd_size = sizeof(struct command);
	tags->flags |= BLK_MQ_F_SHOULD_MERGE;
	error = blk_mq_alloc_tag_set(tags);
	if (error)
		return error;
	limits->features |= BLK_FEAT_WRITE_CACHE;
	limits->max_hw_sectors = 2560;
	limits->max_segments = USHRT_MAX;
	limits->max_segment_size = UINT_MAX;
	limits->discard_granularity = PAGE_SIZE;
	limits->max_hw_discard_sectors = UINT_MAX >> SECTOR_SHIFT;
	*gendisk = blk_mq_alloc_disk(tags, limits, NULL);
	if (IS_ERR(*gendisk)) {
		error = PTR_ERR(*gendisk);
		goto no_disk;
	}
	(*gendisk)->flags = GENHD_FL_NO_PART;
	(*gendisk)->fops = &device_ops;
	strscpy((*gendisk)->disk_name, name, DISK_NAME_LEN);
	set_capacity(*gendisk, (sector_t)mib << (20 - SECTOR_SHIFT));
	error = add_disk(*gendisk);
	if (!error)
		return 0;
	put_disk(*gendisk);
no_disk:
	*gendisk = NULL;
	blk_mq_free_tag_set(tags);
	return error;
}

static void remove_device(struct gendisk *gendisk, struct blk_mq_tag_set *tags, struct store *store)
{
	if (!gendisk)
		return;
	del_gendisk(gendisk);
	put_disk(gendisk);
	blk_mq_free_tag_set(tags);
	store_drop(store, 0, ULONG_MAX);
	xa_destroy(&store->pages);
}

static void modelled_exit(void)
{
	remove_proc_subtree(disk_name, NULL);
	remove_device(disk.gendisk, &disk.tags, &disk.store);
	remove_device(ssd.gendisk, &ssd.tags, &ssd.store);
	vfree(disk.entries);
	vfree(seek_times);
}

static int add_spindle(void)
{
	struct queue_limits limits = {
		.features = BLK_FEAT_ROTATIONAL,
		.logical_block_size = LOGICAL_BLOCK_BYTES,
		.physical_block_size = PHYSICAL_BLOCK_BYTES,
	};
	int error = make_drive();

	if (error)
		return error;
	if ((u64)disk_mib << (20 - SECTOR_SHIFT) > drive_sectors) {
		pr_err("modelled: the drive has %llu MiB, less than the %u of disk_mib\n", drive_sectors >> 11, disk_mib);
		return -EINVAL;
	}
	disk.entries = vmalloc_array(record + 1, sizeof(*disk.entries));
	if (!disk.entries || !proc_create_single(disk_name, 0400, NULL, list_requests))
		return -ENOMEM;
	spin_lock_init(&disk.lock);
	INIT_LIST_HEAD(&disk.waiting);
	hrtimer_init(&disk.timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_HARD);
	disk.timer.function = disk_wakes;
	disk.tags.ops = &disk_ops;
	disk.tags.queue_depth = QUEUE_DEPTH;
	return add_device(disk_name, &disk.tags, &disk.gendisk, &limits, disk_mib);
}

static int add_flash(void)
{
	struct queue_limits limits = { .logical_block_size = 512, .physical_block_size = 4096 };

	if (ssd_channels < 1 || ssd_channels > CHANNELS_MAX || ssd_write_us[0] > ssd_write_us[1]) {
		pr_err("modelled: use 1 to %u ssd_channels, and the shorter of ssd_write_us first\n", CHANNELS_MAX);
		return -EINVAL;
	}
	spin_lock_init(&ssd.lock);
	ssd.draws = seed;
	ssd.tags.ops = &ssd_ops;
	ssd.tags.queue_depth = 256;
	/* As an SSD with a queue for each processor has it. */
	ssd.tags.flags = BLK_MQ_F_NO_SCHED_BY_DEFAULT;
	return add_device("flash", &ssd.tags, &ssd.gendisk, &limits, ssd_mib);
}

static int __init modelled_init(void)
{
	int error = 0;

	store_init(&disk.store);
	store_init(&ssd.store);
	if (disk_mib)
		error = add_spindle();
	if (!error && ssd_mib)
		error = add_flash();
	if (error)
		modelled_exit();
	return error;
}

module_init(modelled_init);
module_exit(modelled_exit);
MODULE_DESCRIPTION("A disk and an SSD with modelled service times");
MODULE_LICENSE("Dual MIT/GPL");
