// Makes two requests with one of the clients, and prints the statuses or errors that they have come to.
import axios from 'axios';
import axiosRetry, {exponentialDelay} from 'axios-retry';
import got from 'got';
import ky from 'ky';

const second = 1000;

function withRetry(options = {}, config = {}) {
	const client = axios.create(config);
	axiosRetry(client, options);
	return client;
}

const clients = {
	'ky GET': url => ky(url),
	'ky POST': url => ky.post(url),
	'ky POST configured': url => ky.post(url, {retry: {methods: ['post']}}),
	'ky timeout': url => ky(url, {timeout: second}),
	'ky maxRetryAfter': url => ky(url, {retry: {maxRetryAfter: 100}}),
	'ky shouldRetry': url => ky(url, {
		retry: {shouldRetry: ({error}) => error.response?.headers.get('Retry-After') > 60 ? false : undefined},
	}),

	'got GET': url => got(url),
	'got POST': url => got.post(url),
	'got POST configured': url => got.post(url, {retry: {methods: ['POST']}}),
	'got timeout': url => got(url, {timeout: {request: 30 * second}}),
	'got maxRetryAfter': url => got(url, {retry: {maxRetryAfter: 60 * second}}),

	'axios-retry GET': url => withRetry().get(url),
	'axios-retry POST': url => withRetry().post(url),
	'axios-retry POST configured': url => withRetry({retryCondition: error => error.response?.status === 429}).post(url),
	'axios-retry exponentialDelay': url => withRetry({retryDelay: exponentialDelay}).get(url),
	'axios-retry timeout': url => withRetry({}, {timeout: second}).get(url),
	'axios-retry shouldResetTimeout': url => withRetry({shouldResetTimeout: true}, {timeout: second}).get(url),
};

const [name, url] = process.argv.slice(2);
for (let i = 0; i < 2; i++) {
	try {
		const response = await clients[name](url);
		console.log(response.status ?? response.statusCode);
	} catch (error) {
		console.log(error.response?.status ?? error.response?.statusCode ?? error.name);
	}
}
