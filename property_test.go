package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/store"
)

// Two limiters on one store decide as the model does, whatever is done to them. Here the store is Memory and time
// is a bubble's, so that all is known: which request is counted first, which is answered first, and to the
// nanosecond when a window or a memory ends.
//
//	go test -race -run=TestModelOnMemory -rapid.checks=10000 .
//
// What fails is shrunk, and reported with a seed and a file that bring it back.
func TestModelOnMemory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			b := newBubble(t)
			t.Repeat(map[string]func(*rapid.T){
				"":               b.check,
				"one again":      b.again,
				"many again":     b.again,
				"requests":       b.requests,
				"batch":          b.requests,
				"time goes by":   b.timeGoesBy,
				"more time":      b.timeGoesBy,
				"restart":        b.restart,
				"other limits":   b.otherLimits,
				"caller reset":   b.resetCaller,
				"operator reset": b.reset,
			})
		})
	})
}

// A bubble is two processes on one Memory store. It is itself the store that they see: it holds their calls back.
type bubble struct {
	ctx       context.Context
	store     *store.Memory
	model     *model
	processes [2]process
	asked     time.Time // when a request was last made
}

type process struct {
	limiter *ratelimit.Limiter
	*instance
}

func newBubble(t *rapid.T) *bubble {
	time.Sleep(time.Duration(rapid.Int64Range(0, int64(8*24*time.Hour)).Draw(t, "start")))
	window := func(size time.Duration) (int64, time.Duration) {
		now := time.Now().UnixNano()
		return now / int64(size), size - time.Duration(now%int64(size))
	}
	b := &bubble{ctx: t.Context(), model: &model{window: window, local: window, exact: true}, asked: time.Now()}
	b.reset(t)
	rules := drawRules(t, []time.Duration{time.Second, 1001 * time.Millisecond, 7 * time.Second, time.Minute, 7 * 24 * time.Hour, ratelimit.MaxWindow})
	for i := range b.processes {
		b.start(t, i, rules)
	}
	return b
}

// start starts a process, in place of one that has crashed perhaps: what it remembered is lost.
func (b *bubble) start(t *rapid.T, i int, rules []rule) {
	for {
		limiter, err := ratelimit.New(b, ratelimit.Config{Policies: policies(rules), Deadline: time.Hour, Logger: logTo(t)})
		if err != nil {
			t.Fatal(err)
		}
		b.processes[i] = process{limiter, newInstance(rules)}
		var all []*http.Request
		for _, c := range callers {
			all = append(all, c.request())
		}
		if limiter.Apart(all...) {
			return
		}
	}
}

// logTo returns a logger that shows what is logged beside an example that fails.
func logTo(t *rapid.T) *slog.Logger { return slog.New(slog.NewTextHandler(lockedOutput{t}, nil)) }

// A lockedOutput is the output of a test, which is not for several goroutines at once. The loggers of several limiters are.
type lockedOutput struct{ t *rapid.T }

var outputMu sync.Mutex

func (o lockedOutput) Write(p []byte) (int, error) {
	outputMu.Lock()
	defer outputMu.Unlock()
	return o.t.Output().Write(p)
}

// A call is a request, what is to happen to it, and what has been decided.
type call struct {
	process, caller int
	gone            bool
	refund          bool
	fate            fate
	inquiry         *inquiry
	hits            []ratelimit.Hit
	counts          []ratelimit.Count
	err             error
	answer          chan struct{}
	got             *ratelimit.Decision
}

// GoString shows what was drawn, in the report of an example that fails.
func (c call) GoString() string {
	return fmt.Sprintf("{process %d caller %d gone %v refund %v fate %d}", c.process, c.caller, c.gone, c.refund, c.fate)
}

// A fate is what happens to a call of the store.
type fate int

const (
	answered fate = iota
	down          // not counted
	lost          // counted, but the answer is lost
)

type callKey struct{}

// Add holds a call of the store back until it is answered.
func (b *bubble) Add(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
	c := ctx.Value(callKey{}).(*call)
	c.hits = hits
	select {
	case <-c.answer:
		return c.counts, c.err
	case <-b.ctx.Done(): // the example has failed
		return nil, b.ctx.Err()
	}
}

func (b *bubble) GiveBack(charges []ratelimit.Charge) { b.store.GiveBack(charges) }

func (b *bubble) Get(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
	return b.store.Get(ctx, hits)
}

func (b *bubble) Reset(ctx context.Context, buckets []string) error {
	return b.store.Reset(ctx, buckets)
}

var (
	drawCall = rapid.Custom(func(t *rapid.T) call {
		c := call{process: rapid.IntRange(0, 1).Draw(t, "process"), caller: rapid.IntRange(0, len(callers)-1).Draw(t, "caller")}
		switch rapid.IntRange(0, 19).Draw(t, "fate") {
		case 15, 16:
			c.refund = true
		case 17:
			c.gone = true
		case 18:
			c.fate = down
		case 19:
			c.fate = lost
		}
		return c
	})
	delay = rapid.SampledFrom([]time.Duration{0, 0, 0, 1, time.Millisecond, 400 * time.Millisecond, 600 * time.Millisecond, 5 * time.Second})
)

// again makes one request after another.
func (b *bubble) again(t *rapid.T) {
	c := drawCall.Draw(t, "request")
	for range rapid.IntRange(1, 9).Draw(t, "times") {
		b.serve(t, []call{c}, 0, 0, []int{0})
	}
}

// requests makes some at once: they are counted together, a while after, and then answered in any order.
func (b *bubble) requests(t *rapid.T) {
	calls := rapid.SliceOfN(drawCall, 1, 8).Draw(t, "requests")
	var order []int
	for i := range calls {
		order = append(order, i)
	}
	b.serve(t, calls, delay.Draw(t, "way there"), delay.Draw(t, "way back"), rapid.Permutation(order).Draw(t, "answered"))
}

func (b *bubble) serve(t *rapid.T, calls []call, there, back time.Duration, order []int) {
	for i := range calls {
		c := &calls[i]
		p := b.processes[c.process]
		b.asked = time.Now()
		c.inquiry = b.model.begin(p.instance, callers[c.caller], c.gone, b.asked, nil)
		c.answer = make(chan struct{})
		ctx, cancel := context.WithCancel(context.WithValue(b.ctx, callKey{}, c))
		defer cancel()
		if c.gone {
			cancel()
		}
		go func() {
			d := p.limiter.Check(callers[c.caller].request().WithContext(ctx))
			c.got = &d
		}()
		synctest.Wait()
		if asks := c.got == nil; asks != c.inquiry.asks {
			t.Fatalf("request %d asks the store: %v, want %v", i, asks, c.inquiry.asks)
		}
	}
	time.Sleep(there)
	for i := range calls {
		if c := &calls[i]; c.got == nil {
			b.count(t, c)
		}
	}
	time.Sleep(back)
	for _, i := range order {
		c := &calls[i]
		if c.got == nil {
			close(c.answer)
			synctest.Wait()
			b.model.answer(c.inquiry, time.Now(), c.err)
		}
		if !equal(c.inquiry.want, *c.got) {
			t.Fatalf("request %d (-want +got):\n%s", i, cmp.Diff(c.inquiry.want, *c.got, equalDecisions))
		}
		b.model.admit(t, c.inquiry.hits, *c.got)
		if c.refund && c.got.Outcome == ratelimit.Allowed {
			b.model.refund(c.inquiry)
		}
		if c.refund {
			c.got.Refund()
			c.got.Refund() // to no effect
		}
	}
}

// equal is what equalDecisions are for, in a tenth of the time.
func equal(want, got ratelimit.Decision) bool {
	if want.Outcome != got.Outcome || want.RetryAfter != got.RetryAfter || !errors.Is(got.Err, want.Err) {
		return false
	}
	return slices.EqualFunc(want.Results, got.Results, func(want, got ratelimit.Result) bool {
		w, g := reflect.ValueOf(want), reflect.ValueOf(got)
		for i := range w.NumField() {
			if w.Type().Field(i).IsExported() && !w.Field(i).Equal(g.Field(i)) {
				return false
			}
		}
		return true
	})
}

func (b *bubble) count(t *rapid.T, c *call) {
	if c.fate != down {
		b.model.count(c.inquiry)
		var err error
		if c.counts, err = b.store.Add(b.ctx, c.hits); err != nil {
			t.Fatal(err)
		}
	}
	if c.fate != answered {
		c.counts, c.err = nil, errDown
	}
}

// timeGoesBy waits, most often for a moment in which something ends, or the last one before or the first after.
func (b *bubble) timeGoesBy(t *rapid.T) {
	var until time.Duration
	switch rapid.SampledFrom([]string{"a window ends", "a refusal is forgotten", "one of several is", "whenever"}).Draw(t, "until") {
	case "a window ends":
		_, until = b.model.window(rapid.SampledFrom(b.processes[0].rules).Draw(t, "of").Limit.Window)
	case "a refusal is forgotten":
		until = time.Until(b.asked.Add(5 * time.Second))
	case "one of several is":
		until = time.Until(b.asked.Add(time.Second / 2))
	case "whenever":
		until = time.Duration(rapid.Int64Range(0, int64(2*time.Minute)).Draw(t, "in"))
	}
	time.Sleep(until + rapid.SampledFrom([]time.Duration{0, -1, 1, -time.Microsecond}).Draw(t, "and"))
}

// restart ends a process and starts another, with other limits perhaps.
func (b *bubble) restart(t *rapid.T) {
	i := rapid.IntRange(0, 1).Draw(t, "process")
	rules := b.processes[i].rules
	if rapid.Bool().Draw(t, "with other limits") {
		rules = withOtherLimits(t, rules)
	}
	b.start(t, i, rules)
}

// otherLimits changes the limits of a process that goes on.
func (b *bubble) otherLimits(t *rapid.T) {
	p := b.processes[rapid.IntRange(0, 1).Draw(t, "process")]
	p.rules = withOtherLimits(t, p.rules)
	if err := p.limiter.SetPolicies(policies(p.rules)); err != nil {
		t.Fatal(err)
	}
}

// resetCaller has a process look at a caller and forget it.
func (b *bubble) resetCaller(t *rapid.T) {
	p := b.processes[rapid.IntRange(0, 1).Draw(t, "process")]
	c := callers[rapid.IntRange(0, len(callers)-1).Draw(t, "caller")]
	c.plan, c.cost = "", 1 // a request that is none says nothing of them
	var keys []ratelimit.Key
	for _, r := range p.rules {
		kind, subject := r.who(c)
		if subject == "" && !r.Optional {
			return // it is counted as its peer, which is nobody's key
		}
		keys = append(keys, ratelimit.NewKey(kind, subject))
	}
	hits := p.hits(c)
	got, err := p.limiter.Peek(b.ctx, keys...)
	if err != nil || len(got) != len(hits) {
		t.Fatalf("Peek returned %v and error %v", got, err)
	}
	for i, h := range hits {
		h.number, h.left = b.model.window(h.window)
		h.previous = b.model.counts[h.before()]
		want, reset := b.model.room(h), h.left
		if h.Sliding && want == 0 {
			reset = h.wait(b.model.counts[h.span], h.previous, h.left, 1)
		}
		if r := got[i]; r.Remaining != want || r.Reset != reset || (r.Outcome == ratelimit.Allowed) != (want > 0) {
			t.Errorf("Peek says %+v, want that %d remain for %v", r, want, reset)
		}
	}
	if err := p.limiter.Reset(b.ctx, keys...); err != nil {
		t.Fatal(err)
	}
	b.model.forget(p.instance, hits)
}

// reset deletes all counts. What the processes remember they go on refusing for its time.
func (b *bubble) reset(t *rapid.T) {
	var err error
	if b.store, err = store.NewMemory(store.MemoryConfig{}); err != nil {
		t.Fatal(err)
	}
	b.model.reset()
}

// check compares what the store has counted. It can tell only by counting one more.
func (b *bubble) check(t *rapid.T) {
	for s, want := range b.model.counts {
		if number, _ := b.model.window(s.window); number != s.number {
			continue
		}
		counts, err := b.store.Add(b.ctx, []ratelimit.Hit{{Bucket: s.row(), Window: s.window, N: 1, Sliding: s.sliding}})
		if err != nil {
			t.Fatal(err)
		}
		b.store.GiveBack([]ratelimit.Charge{{Bucket: s.row(), Start: counts[0].Start, N: 1}})
		if got := counts[0].Total - 1; got != int64(want) {
			t.Errorf("the store has counted %d of %v, want %d", got, s, want)
		}
		if got, want := counts[0].Previous, b.model.counts[s.before()]; s.sliding && got != int64(want) {
			t.Errorf("the store has counted %d in the window before %v, want %d", got, s, want)
		}
	}
}
