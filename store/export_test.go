package store

import "time"

// NewMemoryAt returns a Memory with another clock.
func NewMemoryAt(now func() time.Time) *Memory {
	m, _ := NewMemory(MemoryConfig{})
	m.counter.Now = now
	return m
}

// Texts returns the statements that p sends, by what they are for.
func (p *Postgres) Texts() (countOne, countMany, countSliding, sweep string) {
	sql := p.sender.(*arrays).sql
	return sql.countOne, sql.countMany, sql.countSliding, sql.sweep
}

// RoutedTexts returns the statements about the table that a routed p sends, by what they are for.
func (p *Postgres) RoutedTexts() (count, recent, giveBack, reset, sweep string) {
	sql := p.sender.(*routed).sql
	return sql.count, sql.recent, sql.giveBack, sql.reset, sql.sweep
}

// Pool returns the pool that p uses.
func (p *Postgres) Pool() DB { return p.db }

// Queued returns the sum of the hits that wait for their statement to begin.
func (p *Postgres) Queued() int {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	n := 0
	for _, b := range p.queue.waiting {
		for i := range b.rows {
			n += int(b.rows[i].n)
		}
	}
	return n
}

// Flushing reports whether a statement is in flight, or about to be.
func (p *Postgres) Flushing() bool {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	return p.queue.flushers > 0
}

// DueSweep makes the next sweep due now, whatever the interval.
func (p *Postgres) DueSweep() { p.sweepAt.Store(0) }

// MinShare is how many buckets a statement has at least that goes beside another.
const MinShare = minShare

// MaxWaiting is how many statements may wait for the database.
const MaxWaiting = maxWaiting
