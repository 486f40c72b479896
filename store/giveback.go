package store

import (
	"time"

	"github.com/krow/ratelimit"
)

// giveBackTimeout is how long giving back may take, of the time that counting gets: hits wait for it.
func giveBackTimeout(timeout time.Duration) time.Duration { return timeout / 2 }

// giveBackTries is how often charges are tried to be given back that a locked row has kept from it. The row of a
// limit that all share is locked by one process or the other nearly always, if commits wait for a slow disk or a
// replica.
const giveBackTries = 8

// GiveBack takes charges off, as [ratelimit.Store] says, just before the next hits are counted. What
// goes wrong is logged, and leaves the counts too high.
func (p *Postgres) GiveBack(charges []ratelimit.Charge) {
	valid := make([]charge, 0, len(charges))
	for _, c := range charges {
		if err := validateCharge(c); err != nil {
			p.notGivenBack(err)
			continue
		}
		valid = append(valid, charge{Charge: c})
	}
	p.queueCharges(valid)
}

// queueCharges has charges go with the next batch.
func (p *Postgres) queueCharges(charges []charge) {
	if len(charges) == 0 {
		return
	}
	if err := p.queue.giveBack(charges); err != nil {
		p.notGivenBack(err)
	}
}

// giveBackLater tries charges again, if the error guarantees that nothing was given back and there is hope.
func (p *Postgres) giveBackLater(charges []charge, err error) {
	if !hasCode(err, "55P03") {
		p.notGivenBack(err)
		return
	}
	var later []charge
	for _, c := range charges {
		if c.tries++; c.tries < giveBackTries {
			later = append(later, c)
		}
	}
	if len(later) < len(charges) {
		p.notGivenBack(err)
	}
	p.queueCharges(later)
}

// notGivenBack logs. The logger's own panic must not fail the batch, nor end the process.
func (p *Postgres) notGivenBack(err error) {
	_ = recovered(func() error {
		p.log.Error("ratelimit: not given back", err)
		return nil
	})
}
